# Ends the process with a good exit status. Expect: ended before it answered


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
    import os

    os._exit(0)
