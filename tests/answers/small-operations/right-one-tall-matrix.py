# The chains below each other make one matrix: one product a step.
import time
from statistics import median

import torch


def run_chains(xs, w, steps):
    k, n, _ = xs.shape
    tall = xs.reshape(k * n, n)
    for _ in range(steps):
        tall = torch.mm(tall, w)
    return tall.reshape(k, n, n).clone()


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
