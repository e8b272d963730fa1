/* The judge's own pass: reads every element once in the strided order and does as little as possible with it, so that
   what it costs is the memory's doing. */
#include <stddef.h>
#include <stdint.h>

uint64_t probe_pass(const uint64_t *a, size_t n, size_t stride) {
    uint64_t bits = 0;
    for (size_t first = 0; first < stride && first < n; first++)
        for (size_t i = first; i < n; i += stride) bits ^= a[i];
    return bits;
}
