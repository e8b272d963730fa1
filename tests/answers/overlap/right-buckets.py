# Another right answer: pairs of layers go into one bucket, which is reduced as a whole.
import torch


def backward(layers, compute, start_reduce, world):
    gradients, waiting, started = [None] * layers, [], []
    for i in reversed(range(layers)):
        gradients[i] = compute(i)
        waiting.append(i)
        if len(waiting) == 2 or i <= 1:
            bucket = torch.cat([gradients[k].flatten() for k in waiting])
            started.append((waiting, bucket, start_reduce(bucket)))
            waiting = []
    for members, bucket, handle in started:
        handle.wait()
        for k, part in zip(members, bucket.split([gradients[k].numel() for k in members]), strict=True):
            gradients[k].copy_(part.view_as(gradients[k]))
    return gradients
