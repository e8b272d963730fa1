# Right: a packed type in place of memcpy, barriers, medians of many calls.
import mmap
import time

import numpy as np

C_SOURCE = r"""
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t value;
} __attribute__((packed, may_alias)) word_t;

uint64_t sum_words(const unsigned char *base, size_t offset, size_t stride, size_t count) {
    uint64_t sum = 0;
    const unsigned char *p = base + offset;
    while (count--) {
        sum += ((const word_t *)p)->value;
        __asm__ volatile("" ::: "memory");
        p += stride;
    }
    return sum;
}

void fill_words(unsigned char *base, size_t offset, size_t stride, size_t count, uint64_t value) {
    unsigned char *p = base + offset;
    while (count--) {
        ((word_t *)p)->value = value;
        __asm__ volatile("" ::: "memory");
        p += stride;
    }
}
"""


def experiment(sum_words, fill_words):
    count, repeats = 50_000, 51
    page, line = mmap.PAGESIZE, 128  # lines of 64 bytes are split there too
    buf = np.ones(4 * page, np.uint8)
    start = -buf.ctypes.data % page  # the offset of the buffer's first page boundary
    offsets = {"aligned": start, "unaligned": start + 20, "line_split": start + line - 4, "page_split": start + page - 4}

    def ns(function, *arguments):
        times = []
        for _ in range(repeats):
            begin = time.perf_counter_ns()
            function(*arguments)
            times.append(time.perf_counter_ns() - begin)
        return float(np.median(times)) / count

    return {
        "load": {case: ns(sum_words, buf, at, 0, count) for case, at in offsets.items()},
        "store": {case: ns(fill_words, buf, at, 0, count, 7) for case, at in offsets.items()},
    }
