# One batched product a step instead of eight small ones.
import time
from statistics import median

import torch


def run_chains(xs, w, steps):
    """x·w^steps for every x of xs: [k, n, n] float32."""
    for _ in range(steps):
        xs = torch.matmul(xs, w)  # one call for all k chains
    return xs


def speedup():
    """Time of the serial loop ÷ time of run_chains at k = 8, n = 40, steps = 500."""
    def serial(xs, w, steps):
        out = []
        for x in xs:
            for _ in range(steps):
                x = torch.mm(x, w)
            out.append(x)
        return torch.stack(out)

    w = torch.linalg.qr(torch.randn(40, 40))[0]
    xs = torch.randn(8, 40, 40)
    times = {serial: [], run_chains: []}
    for _ in range(12):  # in turn, so that what slows the machine slows both
        for f in times:
            start = time.perf_counter()
            f(xs, w, 500)
            times[f].append(time.perf_counter() - start)
    return median(times[serial][1:]) / median(times[run_chains][1:])
