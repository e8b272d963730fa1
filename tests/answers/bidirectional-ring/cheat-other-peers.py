# Exchanges with every rank directly. [correctness] Expect: has no link to rank
import torch
import torch.distributed as dist


def all_reduce(tensor, rank, world):
    got = {peer: torch.empty_like(tensor) for peer in range(world) if peer != rank}
    works = [dist.irecv(got[peer], peer) for peer in got] + [dist.isend(tensor, peer) for peer in got]
    for work in works:
        work.wait()
    tensor.copy_(sum((got | {rank: tensor.clone()})[peer] for peer in range(world)))
