# Right: counts the elements of each round, writes its array at random, warms up, passes go round all strides.
import time

import numpy as np

C_SOURCE = r"""
#include <stddef.h>
#include <stdint.h>

uint64_t walk(const uint64_t *a, size_t n, size_t stride) {
    uint64_t h = 0;
    size_t rounds = stride < n ? stride : n;
    for (size_t first = 0; first < rounds; first++) {
        size_t count = (n - 1 - first) / stride + 1;
        const uint64_t *p = a + first;
        while (--count) {
            h = (h << 5) - h + *p;
            p += stride;
        }
        h = (h << 5) - h + *p;
    }
    return h;
}
"""


def experiment(walk):
    a = np.random.default_rng(3).integers(0, 1 << 63, (64 << 20) // 8).astype(np.uint64)
    strides = [8 << i for i in range(10)]
    best = dict.fromkeys(strides, float("inf"))
    for _ in range(5):
        for stride in strides:
            start = time.perf_counter_ns()
            walk(a, a.size, stride // 8)
            best[stride] = min(best[stride], time.perf_counter_ns() - start)
    return {stride: ns / a.size for stride, ns in best.items()}
