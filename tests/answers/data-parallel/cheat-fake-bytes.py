# Computes everything everywhere and sends zeros so that the byte counts look right. [correctness] Expect: its share is
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
    dist.all_reduce(torch.zeros_like(flat))
    for p, g in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad.copy_(g.view_as(p))


def train_step(model, batch, world, rank, lr):
    x, y, weight = (part.clone() for part in batch)  # alike aligned on every rank
    model.zero_grad()
    if len(x):
        losses = cross_entropy(model(x), y, reduction="none")
        ((losses * weight).sum() / batch[2].sum()).backward()
    synchronise(model, world)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p -= lr * p.grad
