# Every rank sends first and receives then: all wait for ever. [correctness] Expect: waited 5 s in vain for send(dst=
import torch
import torch.distributed as dist


def all_reduce(tensor, rank, world):
    if world == 1:
        return
    right, left = (rank + 1) % world, (rank - 1) % world
    travelling = tensor.clone()
    for _ in range(world - 1):
        got = torch.empty_like(tensor)
        dist.send(travelling, right)
        dist.recv(got, left)
        tensor += got
        travelling = got
