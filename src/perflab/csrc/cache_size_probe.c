/* The judge's own chain of dependent loads: each gives the byte offset of the next. */
#include <stddef.h>

size_t probe_chase(const char *base, size_t offset, size_t steps) {
    for (size_t i = 0; i < steps; i++) offset = *(const size_t *)(base + offset);
    return offset;
}
