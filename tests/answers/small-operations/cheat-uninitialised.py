# [correctness] Returns uninitialised memory in the hope that it holds the right values. Expect: `run_chains` with k = 
import time
from statistics import median

import torch


def run_chains(xs, w, steps):
    return torch.empty_like(xs)


def serial(xs, w, steps):
    out = []
    for x in xs:
        for _ in range(steps):
            x = torch.mm(x, w)
        out.append(x)
    return torch.stack(out)


def speedup():
    w = torch.linalg.qr(torch.randn(40, 40))[0]
    xs = torch.randn(8, 40, 40)
    times = {serial: [], run_chains: []}
    for _ in range(12):
        for f in times:
            start = time.perf_counter()
            f(xs, w, 500)
            times[f].append(time.perf_counter() - start)
    return median(times[serial][1:]) / median(times[run_chains][1:])
