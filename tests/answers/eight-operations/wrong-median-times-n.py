# Multiplies the median of the single times by n. Expect: concurrency
import time
from statistics import median

import torch


def took(f, *args):
    start = time.perf_counter()
    f(*args)
    return time.perf_counter() - start


def concurrency(run_one, run_all, n):
    run_one(0)
    alone = [median(took(run_one, i) for _ in range(3)) for i in range(n)]
    return n * median(alone) / median(took(run_all) for _ in range(3))


def torch_concurrency():
    a = torch.randn(8, 512, 512)

    def run_all():
        for i in range(8):
            torch.mm(a[i], a[i])

    return concurrency(lambda i: torch.mm(a[i], a[i]), run_all, 8)
