# Sends the whole tensor round both ways and adds what arrives. [correctness] Expect: times the tensor
import torch
import torch.distributed as dist


def all_reduce(tensor, rank, world):
    if world == 1:
        return
    right, left = (rank + 1) % world, (rank - 1) % world
    to_right, to_left = tensor.clone(), tensor.clone()
    seen = {rank: tensor.clone()}
    for step in range(1, world):
        from_left, from_right = torch.empty_like(tensor), torch.empty_like(tensor)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.irecv, from_left, left, tag=0),
            dist.P2POp(dist.irecv, from_right, right, tag=1),
            dist.P2POp(dist.isend, to_right, right, tag=0),
            dist.P2POp(dist.isend, to_left, left, tag=1),
        ])
        for work in works:
            work.wait()
        to_right, to_left = from_left, from_right
        seen[(rank - step) % world] = from_left
    tensor.copy_(sum(seen[r] for r in range(world)))
