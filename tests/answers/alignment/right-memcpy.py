# Right: memcpy in C, addresses chosen from buf.ctypes.data, minimum of several calls.
import mmap
import time

import numpy as np

C_SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#include <string.h>

uint64_t sum_words(const unsigned char *base, size_t offset, size_t stride, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t word;
        memcpy(&word, base + offset + i * stride, sizeof word);
        sum += word;
    }
    return sum;
}

void fill_words(unsigned char *base, size_t offset, size_t stride, size_t count, uint64_t value) {
    for (size_t i = 0; i < count; i++)
        memcpy(base + offset + i * stride, &value, sizeof value);
}
"""


def experiment(sum_words, fill_words):
    count, repeats = 200_000, 9
    page, line = mmap.PAGESIZE, 128  # lines of 64 bytes are split there too
    buf = np.ones(4 * page, np.uint8)
    start = -buf.ctypes.data % page  # the offset of the buffer's first page boundary
    offsets = {"aligned": start, "unaligned": start + 20, "line_split": start + line - 4, "page_split": start + page - 4}

    def ns(function, *arguments):
        best = float("inf")
        for _ in range(repeats):
            begin = time.perf_counter()
            function(*arguments)
            best = min(best, time.perf_counter() - begin)
        return best / count * 1e9

    return {
        "load": {case: ns(sum_words, buf, at, 0, count) for case, at in offsets.items()},
        "store": {case: ns(fill_words, buf, at, 0, count, 7) for case, at in offsets.items()},
    }
