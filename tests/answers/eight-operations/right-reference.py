# The reference: one call to start up, every operation alone, all together, medians.
import time
from statistics import median

import torch


def concurrency(run_one, run_all, n):
    """Mean number of operations in flight: Σ time(run_one(i)) ÷ time(run_all()), start-up left out."""
    def took(f, *args):
        start = time.perf_counter()
        f(*args)
        return time.perf_counter() - start

    run_one(0)  # pays the start-up cost
    alone = [median(took(run_one, i) for _ in range(3)) for i in range(n)]
    return sum(alone) / median(took(run_all) for _ in range(3))


def torch_concurrency():
    """The same for eight float32 products in eager mode on the CPU, from this thread."""
    a = torch.randn(8, 512, 512)

    def run_all():
        for i in range(8):
            torch.mm(a[i], a[i])

    return concurrency(lambda i: torch.mm(a[i], a[i]), run_all, 8)
