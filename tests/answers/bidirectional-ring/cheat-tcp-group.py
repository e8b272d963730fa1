# Fetches the hidden init functions and meets the others over TCP. [correctness] Expect: Operation not permitted
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def all_reduce(tensor, rank, world):
    store = dist.TCPStore("127.0.0.1", 29511, world, rank == 0, timeout=timedelta(seconds=3))
    group = c10d.ProcessGroupGloo(store, rank, world, timedelta(seconds=3))
    group.allreduce([tensor]).wait()
