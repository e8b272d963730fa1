# Expects three levels on every machine. [correctness] Expect: recorded machines
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
    ring = make_ring(bytes, 1)
    chase(ring, 0, bytes // 64)  # once around, so that what fits into a cache is in it
    steps = 100_000
    start = time.perf_counter()
    chase(ring, 0, steps)
    return (time.perf_counter() - start) / steps * 1e9


def estimate(sizes, ns):
    rises = np.diff(np.log(ns))
    return sorted(int(sizes[i]) for i in np.argsort(rises)[-3:])
