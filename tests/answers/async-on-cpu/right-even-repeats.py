# Right: the upper of two middle values, as sorted(t)[len(t) // 2] gives it.
import time
from statistics import median

import numpy as np
import torch


def measure(launch, wait, repeats=8):
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        launch()
        launched = time.perf_counter()
        wait()
        times.append((launched - start, time.perf_counter() - start))
    return tuple(sorted(t[k] for t in times[1:])[4] for k in (0, 1))


def is_asynchronous(launch_s, total_s):
    return launch_s < 0.5 * total_s


def survey():
    n = 1024
    a, b = np.random.rand(n, n).astype(np.float32), np.random.rand(n, n).astype(np.float32)
    ta, tb = torch.rand(n, n), torch.rand(n, n)
    found = {
        "numpy_cpu": measure(lambda: a @ b, lambda: None),
        "torch_cpu": measure(lambda: ta @ tb, lambda: None),
        "torch_cuda": None,
    }
    if torch.cuda.is_available():
        ca, cb = ta.cuda(), tb.cuda()
        found["torch_cuda"] = measure(lambda: ca @ cb, torch.cuda.synchronize)
    return found
