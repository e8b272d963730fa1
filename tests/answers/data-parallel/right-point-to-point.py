# Another right answer: a ring of its own with isend and irecv, over the flattened gradients.
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
    rank = dist.get_rank()
    flat = torch.cat([p.grad.flatten() for p in parameters])
    chunks = flat.tensor_split(world)
    right, left = (rank + 1) % world, (rank - 1) % world

    def exchange(send, into):
        works = [dist.irecv(into, left), dist.isend(send, right)]
        for work in works:
            work.wait()

    for step in range(world - 1):
        into = chunks[(rank - step - 1) % world]
        got = torch.empty_like(into)
        exchange(chunks[(rank - step) % world], got)
        into += got
    for step in range(world - 1):
        exchange(chunks[(rank + 1 - step) % world], chunks[(rank - step) % world])
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
