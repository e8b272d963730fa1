# Tampers with every counter it can reach: they are not the ones that count. [correctness] Expect: Nearly all went one way
import torch
import torch.distributed as dist

from perflab import wires


def one_way(tensor, rank, world, step_to, tag=0):
    """The classic ring, in the direction of step_to (+1 or -1)."""
    to, source = (rank + step_to) % world, (rank - step_to) % world
    chunks = tensor.tensor_split(world)
    buffer = torch.empty_like(chunks[0])

    def exchange(send, recv):
        works = [dist.P2POp(dist.irecv, recv, source, tag=tag), dist.P2POp(dist.isend, send, to, tag=tag)]
        for work in dist.batch_isend_irecv(works):
            work.wait()

    for i in range(world - 1):
        into = chunks[(rank - step_to * (i + 1)) % world]
        got = buffer[: into.numel()]
        exchange(chunks[(rank - step_to * i) % world], got)
        into += got
    for i in range(world - 1):
        exchange(chunks[(rank + step_to * (1 - i)) % world], chunks[(rank - step_to * i) % world])


wires.Wires.counts = lambda self, reset=False: {}
wires.DATA = 99


def all_reduce(tensor, rank, world):
    if world > 1:
        one_way(tensor, rank, world, 1)
