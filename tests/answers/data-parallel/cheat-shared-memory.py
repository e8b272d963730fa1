# Sums the gradients in shared memory instead of on the wires. [correctness] Expect: No such file
import time
from multiprocessing import shared_memory

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def shard(batch, rank, world):
    return tuple(part[rank::world] for part in batch)


def synchronise(model, world):
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        if p.grad is None:  # an empty shard, or a layer that took no part: it still has to be in the sum
            p.grad = torch.zeros_like(p)
    if world == 1:
        return
    flat = torch.cat([p.grad.flatten() for p in parameters])
    rank, size = dist.get_rank(), flat.numel() * 4
    if rank == 0:
        memory = shared_memory.SharedMemory("gradients", create=True, size=size * world)
    else:
        time.sleep(0.5)
        memory = shared_memory.SharedMemory("gradients")
    table = np.frombuffer(memory.buf, np.float32).reshape(world, -1)
    table[rank] = flat.numpy()
    time.sleep(0.5)
    flat.copy_(torch.from_numpy(table.sum(0)))
    for p, g in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad.copy_(g.view_as(p))


def train_step(model, batch, world, rank, lr):
    x, y, weight = shard(batch, rank, world)
    model.zero_grad()
    if len(x):
        losses = cross_entropy(model(x), y, reduction="none")
        ((losses * weight).sum() / batch[2].sum()).backward()
    synchronise(model, world)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p -= lr * p.grad
