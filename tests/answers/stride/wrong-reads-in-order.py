# Reads from front to back with a hash for each residue and combines them: right sums, no strided access. Expect: hides the effect
import time

import numpy as np

C_SOURCE = r"""
#include <stddef.h>
#include <stdint.h>

#define WIDTH 512

uint64_t walk(const uint64_t *a, size_t n, size_t stride) {
    size_t rounds = stride < n ? stride : n;
    uint64_t h = 0;
    for (size_t first = 0; first < rounds; first += WIDTH) {
        size_t width = rounds - first < WIDTH ? rounds - first : WIDTH;
        uint64_t part[WIDTH] = {0}, power[WIDTH];
        for (size_t k = 0; k < width; k++) power[k] = 1;
        for (size_t row = 0; row < n - first; row += stride) {
            size_t here = n - first - row < width ? n - first - row : width;
            for (size_t k = 0; k < here; k++) {
                part[k] = part[k] * 31 + a[first + row + k];
                power[k] *= 31;
            }
            if (stride >= n - first - row) break;
        }
        for (size_t k = 0; k < width; k++) h = h * power[k] + part[k];
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
            walk(a, n, stride_bytes // 8)
            passes.append(time.perf_counter() - start)
        result[stride_bytes] = min(passes) / n * 1e9
    return result
