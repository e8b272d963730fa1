# Another right answer: rounds of everything, minima, numpy products of matmul.
import time

import torch


def took(f, *args):
    start = time.perf_counter()
    f(*args)
    return time.perf_counter() - start


def concurrency(run_one, run_all, n):
    run_all()
    rounds = [([took(run_one, i) for i in range(n)], took(run_all)) for _ in range(4)]
    return sum(min(r[0][i] for r in rounds) for i in range(n)) / min(r[1] for r in rounds)


def torch_concurrency():
    a = torch.randn(8, 512, 512)

    def run_all():
        for i in range(8):
            a[i] @ a[i]

    return concurrency(lambda i: a[i] @ a[i], run_all, 8)
