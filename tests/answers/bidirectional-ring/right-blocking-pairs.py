# Another right answer: isend and irecv without a batch, blocking waits, empty messages skipped, an odd tag.
import torch
import torch.distributed as dist


def all_reduce(tensor, rank, world):
    if world == 1:
        return
    right, left = (rank + 1) % world, (rank - 1) % world
    cut = (tensor.numel() + 1) // 2
    a = tensor[:cut].chunk(world) if cut else ()
    b = tensor[cut:].chunk(world) if tensor.numel() > cut else ()
    empty = tensor[:0]

    def piece(parts, i):
        return parts[i % world] if i % world < len(parts) else empty

    def start(send, to, recv, source, tag):
        works = []
        if recv.numel():
            works.append(dist.irecv(recv, source, tag=tag))
        if send.numel():
            works.append(dist.isend(send, to, tag=tag))
        return works

    for step in range(world - 1):
        into_a, into_b = piece(a, rank - step - 1), piece(b, rank + step + 1)
        got_a, got_b = torch.empty_like(into_a), torch.empty_like(into_b)
        works = start(piece(a, rank - step), right, got_a, left, 7)
        works += start(piece(b, rank + step), left, got_b, right, 1 << 20)
        for work in works:
            work.wait()
        into_a.add_(got_a)
        into_b.add_(got_b)
    for step in range(world - 1):
        works = start(piece(a, rank + 1 - step), right, piece(a, rank - step), left, 7)
        works += start(piece(b, rank - 1 + step), left, piece(b, rank + step), right, 1 << 20)
        for work in works:
            work.wait()
