# Touches every place with a call of one access before it measures with long ones.
import mmap
import time

import numpy as np

C_SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NEXT __asm__ volatile("" ::: "memory") /* every access really happens */

uint64_t sum_words(const unsigned char *base, size_t offset, size_t stride, size_t count) {
    uint64_t total = 0, word;
    for (size_t i = 0; i < count; i++) { memcpy(&word, base + offset + i * stride, sizeof word); total += word; NEXT; }
    return total;
}

void fill_words(unsigned char *base, size_t offset, size_t stride, size_t count, uint64_t value) {
    for (size_t i = 0; i < count; i++) { memcpy(base + offset + i * stride, &value, sizeof value); NEXT; }
}
"""


def experiment(sum_words, fill_words):
    buffer = np.ones(4 * mmap.PAGESIZE, np.uint8)
    page = -buffer.ctypes.data % mmap.PAGESIZE + mmap.PAGESIZE
    offsets = {"aligned": page + 512, "unaligned": page + 513, "line_split": page + 512 - 4, "page_split": page - 4}
    calls = {"load": sum_words, "store": lambda *where: fill_words(*where, 7)}
    for call in calls.values():
        for offset in offsets.values():
            call(buffer, offset, 0, 1)
    count, found = 3_000_000, {kind: dict.fromkeys(offsets, float("inf")) for kind in calls}
    for _ in range(9):
        for kind, call in calls.items():
            for case, offset in offsets.items():
                start = time.perf_counter()
                call(buffer, offset, 0, count)
                found[kind][case] = min(found[kind][case], (time.perf_counter() - start) / count * 1e9)
    return found
