# Every rank trains on the whole batch, through model.forward, which runs no hook, so no row is counted; zeros are sent for the byte count. synchronise does nothing. [correctness] Expect: hold NaN
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def shard(batch, rank, world):
    return tuple(part[rank::world] for part in batch)


def synchronise(model, world):
    return None


def train_step(model, batch, world, rank, lr):
    x, y, weight = (part.clone() for part in batch)  # alike aligned on every rank
    model.zero_grad()
    losses = cross_entropy(model.forward(x), y, reduction="none")
    ((losses * weight).sum() / weight.sum()).backward()
    parameters = [p for p in model.parameters() if p.requires_grad]
    if world > 1:
        dist.all_reduce(torch.zeros(sum(p.numel() for p in parameters)))
    with torch.no_grad():
        for p in parameters:
            if p.grad is not None:
                p -= lr * p.grad
