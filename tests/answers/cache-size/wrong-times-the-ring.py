# Times the making of the ring too. Expect: `latency` gives
import itertools
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
    order = np.concatenate(([0], 1 + np.random.default_rng(seed).permutation(lines - 1))) * 8
    ring = np.zeros(bytes // 8, np.uintp)
    ring[order] = np.roll(order, -1)
    return ring


def latency(chase, bytes):
    steps = 100_000
    start = time.perf_counter()
    ring = make_ring(bytes, 1)
    chase(ring, 0, bytes // 64)
    chase(ring, 0, steps)
    return (time.perf_counter() - start) / steps * 1e9


def estimate(sizes, ns):
    x, y = np.log2(sizes), np.log2(ns)
    n = len(y)
    total, square = np.concatenate(([0], np.cumsum(y))), np.concatenate(([0], np.cumsum(y * y)))

    def cost(i, j):  # squared error of one plateau over points i … j − 1
        return square[j] - square[i] - (total[j] - total[i]) ** 2 / (j - i)

    best, last = [0.0] + [math.inf] * n, [0] * (n + 1)
    for j in range(1, n + 1):
        for i in range(j):
            value = best[i] + cost(i, j) + 0.25
            if value < best[j]:
                best[j], last[j] = value, i
    pieces, j = [], n
    while j:
        pieces.insert(0, (last[j], j))
        j = last[j]
    levels = []  # plateaus: pieces that are long, or next to a neighbour a factor of 1.8 away
    for i, j in pieces:
        level = float(np.median(y[i:j]))
        if x[j - 1] - x[i] < 0.9 and j < n:
            continue  # an edge between two plateaus, not a plateau
        if levels and level - levels[-1] < math.log2(1.7):
            continue
        levels.append(level)
    found = []
    for low, high in itertools.pairwise(levels):
        middle = (low + high) / 2
        k = int(np.flatnonzero(y <= middle)[-1])
        if k + 1 < n:
            share = (middle - y[k]) / (y[k + 1] - y[k])
            found.append(round(2 ** (x[k] + share * (x[k + 1] - x[k]))))
        else:
            found.append(int(sizes[k]))
    return found
