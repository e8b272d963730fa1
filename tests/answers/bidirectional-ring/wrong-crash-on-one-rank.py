# Rank 2 raises; the others wait for it. [correctness] Expect: Rank 2 of 3
import torch
import torch.distributed as dist


def all_reduce(tensor, rank, world):
    if world == 1:
        return
    if rank == 2:
        raise IndexError("list index out of range")
    right, left = (rank + 1) % world, (rank - 1) % world
    half = tensor.numel() // 2
    # (part of the tensor, to whom, from whom, +1 when it travels to the right, tag)
    ways = [(tensor[:half], right, left, 1, 0), (tensor[half:], left, right, -1, 1)]
    chunks = [part.tensor_split(world) for part, *_ in ways]
    buffers = [torch.empty_like(c[0]) for c in chunks]

    def exchange(send, recv):
        """One step both ways: send[i] and recv[i] are the chunk sent and the buffer filled on way i."""
        operations = []
        for i, (_, to, source, _, tag) in enumerate(ways):
            operations.append(dist.P2POp(dist.irecv, recv[i], source, tag=tag))
            operations.append(dist.P2POp(dist.isend, send[i], to, tag=tag))
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    for step in range(world - 1):  # reduce-scatter: chunk after chunk collects its sum
        send = [c[(rank - d * step) % world] for c, (*_, d, _) in zip(chunks, ways, strict=True)]
        into = [c[(rank - d * (step + 1)) % world] for c, (*_, d, _) in zip(chunks, ways, strict=True)]
        got = [b[: x.numel()] for b, x in zip(buffers, into, strict=True)]
        exchange(send, got)
        for x, g in zip(into, got, strict=True):
            x += g
    for step in range(world - 1):  # all-gather: the finished chunks go round
        send = [c[(rank + d * (1 - step)) % world] for c, (*_, d, _) in zip(chunks, ways, strict=True)]
        into = [c[(rank - d * step) % world] for c, (*_, d, _) in zip(chunks, ways, strict=True)]
        exchange(send, into)
