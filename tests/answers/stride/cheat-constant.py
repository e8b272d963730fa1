# Figures of somebody else. Expect: has to make the passes


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
    ns = [0.68, 0.68, 0.87, 1.5, 4.1, 4.3, 4.6, 5.2, 4.9, 4.8]
    return {8 << i: value for i, value in enumerate(ns)}
