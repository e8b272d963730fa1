# The total counts from the launch's return. Expect: counts from before the launch
import time
from statistics import median

import numpy as np
import torch


def measure(launch, wait):
    launches, totals = [], []
    for _ in range(11):
        start = time.perf_counter()
        launch()
        launches.append(time.perf_counter() - start)
        start = time.perf_counter()
        wait()
        totals.append(time.perf_counter() - start)
    return median(launches[1:]), median(totals[1:])


def is_asynchronous(launch_s, total_s):
    return launch_s < 0.5 * total_s


def survey():
    x = np.ones((1024, 1024), np.float32)
    t = torch.from_numpy(x)
    found = {}
    for name, a in (("numpy_cpu", x), ("torch_cpu", t)):
        a @ a
        start = time.perf_counter()
        a @ a
        found[name] = (time.perf_counter() - start,) * 2
    found["torch_cuda"] = None
    if torch.cuda.is_available():
        y = t.cuda()
        found["torch_cuda"] = measure(lambda: y @ y, torch.cuda.synchronize)
    return found
