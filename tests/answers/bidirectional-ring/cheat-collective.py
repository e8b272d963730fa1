# Calls the collective of torch.distributed. [correctness] Expect: all_reduce is a collective
import torch.distributed as dist


def all_reduce(tensor, rank, world):
    dist.all_reduce(tensor)
