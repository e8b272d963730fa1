# One bucket for all layers can only start when the last is there. Expect: Start a layer's reduction as soon as
import torch


def backward(layers, compute, start_reduce, world):
    gradients = [None] * layers
    for i in reversed(range(layers)):
        gradients[i] = compute(i)
    bucket = torch.cat([g.flatten() for g in gradients])
    start_reduce(bucket).wait()
    return [part.view_as(g) for part, g in zip(bucket.split([g.numel() for g in gradients]), gradients, strict=True)]
