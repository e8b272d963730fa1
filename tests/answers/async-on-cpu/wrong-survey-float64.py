# NumPy's random numbers are float64, twice the work of what is asked. Expect: numpy_cpu
import time
from statistics import median

import numpy as np
import torch


def measure(launch, wait):
    pairs = []
    for _ in range(11):
        start = time.perf_counter()
        launch()
        launched = time.perf_counter()
        wait()
        pairs.append((launched - start, time.perf_counter() - start))
    launches, totals = zip(*pairs[1:], strict=True)
    return median(launches), median(totals)


def is_asynchronous(launch_s, total_s):
    return launch_s < 0.5 * total_s


def survey():
    a, x = np.random.standard_normal((1024, 1024)), torch.randn(1024, 1024)
    found = {
        "numpy_cpu": measure(lambda: a @ a, lambda: None),
        "torch_cpu": measure(lambda: x @ x, lambda: None),
        "torch_cuda": None,
    }
    if torch.cuda.is_available():
        y = x.cuda()
        found["torch_cuda"] = measure(lambda: y @ y, torch.cuda.synchronize)
    return found
