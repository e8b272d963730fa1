# Meets the other ranks in shared memory. [correctness] Expect: No such file
import time
from multiprocessing import shared_memory

import torch


def all_reduce(tensor, rank, world):
    if world == 1 or tensor.numel() == 0:
        return
    size = tensor.numel() * tensor.element_size()
    name = f"ring-{world}-{tensor.numel()}-{tensor.element_size()}"
    if rank == 0:
        memory = shared_memory.SharedMemory(name, create=True, size=size * world)
    else:
        time.sleep(1)  # until rank 0 has made it
        memory = shared_memory.SharedMemory(name)
    all_of_them = torch.frombuffer(memory.buf, dtype=tensor.dtype).view(world, -1)
    all_of_them[rank] = tensor
    time.sleep(0.5)
    tensor.copy_(all_of_them.sum(0))
