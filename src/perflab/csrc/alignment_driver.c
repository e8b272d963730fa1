/* Calls sum_words and fill_words on the cases of cases.bin; the judge builds it with the sanitizers.

   cases.bin is a row of uint64: the number of cases, then for each case
   kind (0 sum, 1 fill), shift, size, offset, stride, count, value, and `size` bytes padded to a multiple of 8.
   results.bin gets for each case the sum (0 for a fill) and the buffer afterwards, padded alike.
   The buffer is the last `size` bytes of an allocation of its own, `shift` bytes into it: the address sanitizer
   sees the first byte behind it, and the judge finds a byte that changed before it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t sum_words(const unsigned char *base, size_t offset, size_t stride, size_t count);
void fill_words(unsigned char *base, size_t offset, size_t stride, size_t count, uint64_t value);

static void get(void *to, size_t n, FILE *f) {
    if (n && fread(to, 1, n, f) != n) exit(3);
}
static void put(const void *from, size_t n, FILE *f) {
    if (n && fwrite(from, 1, n, f) != n) exit(4);
}

int main(void) {
    FILE *in = fopen("cases.bin", "rb"), *out = fopen("results.bin", "wb");
    uint64_t cases, zero = 0;
    if (!in || !out) return 2;
    get(&cases, 8, in);
    for (uint64_t c = 0; c < cases; c++) {
        uint64_t h[7], sum = 0;
        unsigned char padding[8];
        get(h, sizeof h, in);
        size_t shift = h[1], size = h[2], pad = (8 - size % 8) % 8;
        unsigned char *block = malloc(shift + size), *base = block + shift;
        if (!block) return 5;
        memset(block, 0x5a, shift);
        get(base, size, in);
        get(padding, pad, in);
        if (h[0]) fill_words(base, h[3], h[4], h[5], h[6]);
        else sum = sum_words(base, h[3], h[4], h[5]);
        for (size_t i = 0; i < shift; i++)
            if (block[i] != 0x5a) {
                fprintf(stderr, "case %llu: a byte before the buffer changed\n", (unsigned long long)c);
                return 6;
            }
        put(&sum, 8, out);
        put(base, size, out);
        put(&zero, pad, out);
        free(block);
    }
    return fclose(out) ? 7 : 0;
}
