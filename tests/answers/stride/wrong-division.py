# Divides for every element, which hides the memory. Expect: hides the effect
import time

import numpy as np

C_SOURCE = r"""
#include <stddef.h>
#include <stdint.h>

uint64_t walk(const uint64_t *a, size_t n, size_t stride) {
    uint64_t h = 0;
    if (n == 0) return 0;
    size_t rounds = stride < n ? stride : n, first = 0, k = 0;
    for (size_t done = 0; done < n; done++) {
        volatile uint64_t work = h | 1;
        for (int again = 0; again < 6; again++) work = (work ^ done) % 1000003 + 1;
        h = h * 31 + a[first + k * stride];
        if ((n - 1 - first) / stride == k) {
            first++;
            k = 0;
        } else
            k++;
    }
    return rounds ? h : 0;
}
"""


def experiment(walk):
    n = (64 << 20) // 8
    a = np.arange(n, dtype=np.uint64)
    result = {}
    for stride_bytes in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        passes = []
        for _ in range(4):
            start = time.perf_counter()
            walk(a, n, stride_bytes // 8)
            passes.append(time.perf_counter() - start)
        result[stride_bytes] = min(passes) / n * 1e9
    return result
