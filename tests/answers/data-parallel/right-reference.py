# The reference: strided shards, one flat all_reduce, plain SGD.
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def shard(batch, rank, world):
    """This rank's part of batch = (x, y, weight): a tuple of the same kind, possibly empty."""
    return tuple(part[rank::world] for part in batch)


def synchronise(model, world):
    """Replaces the .grad of each trainable parameter by its sum over all ranks."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        if p.grad is None:  # an empty shard, or a layer that took no part: it still has to be in the sum
            p.grad = torch.zeros_like(p)
    if world == 1:
        return
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)
    for p, g in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad.copy_(g.view_as(p))


def train_step(model, batch, world, rank, lr):
    """One step of SGD on the whole batch, shared by all ranks; changes the parameters in place."""
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
