/* The judge's own accesses: what one address costs on this machine, whatever the answer's C hides. Every access is
   volatile, so the compiler keeps each of them, and packed, so it may be unaligned. */
#include <stddef.h>
#include <stdint.h>

struct word {
    uint64_t value;
} __attribute__((packed, may_alias));

uint64_t probe_load(const unsigned char *address, size_t count) {
    const volatile struct word *p = (const volatile struct word *)address;
    uint64_t sum = 0;
    while (count--) sum += p->value;
    return sum;
}

uint64_t probe_store(unsigned char *address, size_t count) {
    volatile struct word *p = (volatile struct word *)address;
    for (size_t i = 0; i < count; i++) p->value = i;
    return p->value;
}
