# Times the making of the array too. Expect: your experiment gives
import time

import numpy as np

C_SOURCE = r"""
#include <stddef.h>
#include <stdint.h>

uint64_t walk(const uint64_t *a, size_t n, size_t stride) {
    uint64_t h = 0;
    for (size_t first = 0; first < stride && first < n; first++) {
        size_t i = first;
        for (;;) {
            h = h * 31 + a[i];
            if (n - i <= stride) break;
            i += stride;
        }
    }
    return h;
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
            a = np.arange(n, dtype=np.uint64)
            walk(a, n, stride_bytes // 8)
            passes.append(time.perf_counter() - start)
        result[stride_bytes] = min(passes) / n * 1e9
    return result
