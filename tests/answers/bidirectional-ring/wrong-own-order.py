# Every rank adds the pieces in its own order: the sums differ in the last bits. [correctness] Expect: disagree in the last bits
import torch
import torch.distributed as dist


def all_reduce(tensor, rank, world):
    if world == 1:
        return
    right, left = (rank + 1) % world, (rank - 1) % world
    travelling = tensor.clone()
    for _ in range(world - 1):
        got = torch.empty_like(tensor)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, left), dist.P2POp(dist.isend, travelling, right)]):
            work.wait()
        tensor += got
        travelling = got
