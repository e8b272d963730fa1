# Makes a Gloo group of its own, which would go round the links. [correctness] Expect: the default process group is there already
import torch.distributed as dist


def all_reduce(tensor, rank, world):
    group = dist.new_group(backend="gloo")
    dist.all_reduce(tensor, group=group)
