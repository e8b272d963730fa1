# Sums along the ring into rank 0, which sends the result on to all. [correctness] Expect: times the tensor
import torch
import torch.distributed as dist


def all_reduce(tensor, rank, world):
    if world == 1:
        return
    if rank == world - 1:
        dist.send(tensor, rank - 1)
    else:
        got = torch.empty_like(tensor)
        dist.recv(got, rank + 1)
        tensor += got
        if rank > 0:
            dist.send(tensor, rank - 1)
    if rank > 0:
        dist.recv(tensor, rank - 1, tag=1)
    if rank < world - 1:
        dist.send(tensor, rank + 1, tag=1)
