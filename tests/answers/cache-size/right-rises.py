# Right: Sattolo's shuffle, whole laps, and an estimator that looks for the steepest rises.
import math
import time

import numpy as np

C_SOURCE = r"""
#include <stddef.h>

size_t chase(const size_t *next, size_t start, size_t steps) {
    while (steps--) start = next[start];
    return start;
}
"""


def make_ring(bytes, seed):
    lines = bytes // 64
    rng = np.random.default_rng(seed)
    if lines < 100_000:  # Sattolo: a permutation that is one cycle
        following = list(range(lines))
        for i, j in zip(range(lines - 1, 0, -1), rng.integers(0, range(lines - 1, 0, -1)) if lines > 1 else [], strict=True):
            following[i], following[j] = following[j], following[i]
        following = np.array(following)
    else:
        order = np.append(0, 1 + rng.permutation(lines - 1))
        following = np.empty(lines, int)
        following[order] = np.roll(order, -1)
    ring = np.zeros(bytes // 8, np.uintp)
    ring[::8] = following * 8
    return ring


def latency(chase, bytes):
    lines = bytes // 64
    ring = make_ring(bytes, 7)
    at = chase(ring, 0, lines)
    steps = max(150_000 // lines, 1) * lines if lines < 400_000 else 150_000
    start = time.perf_counter_ns()
    chase(ring, at, steps)
    return (time.perf_counter_ns() - start) / steps


def estimate(sizes, ns):
    x, y = np.log2(sizes), np.log2(ns)
    grid = np.arange(x[0], x[-1], 1 / 16)
    fine = np.interp(grid, x, y)
    smooth = np.array([np.median(fine[max(0, i - 3) : i + 4]) for i in range(len(fine))])
    half = 10  # the rise over 1.25 octaves
    rise = np.array([smooth[min(i + half, len(grid) - 1)] - smooth[max(i - half, 0)] for i in range(len(grid))])
    found = []
    while rise.max() > math.log2(1.6):
        i = int(rise.argmax())
        low, high = i, i
        while low > 0 and rise[low - 1] > 0.25:
            low -= 1
        while high < len(grid) - 1 and rise[high + 1] > 0.25:
            high += 1
        middle = (smooth[low] + smooth[high]) / 2
        at = low + int(np.flatnonzero(smooth[low : high + 1] >= middle)[0])
        found.append(int(2 ** grid[at]))
        rise[max(0, low - 2) : high + 3] = 0
    return sorted(found)
