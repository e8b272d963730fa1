/* Calls walk on the cases of cases.bin; the judge builds it with the sanitizers.

   cases.bin is a row of uint64: the number of cases, then for each case n, stride and the n elements.
   results.bin gets the value that walk returned for each case. The array is an allocation of exactly n elements. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

uint64_t walk(const uint64_t *a, size_t n, size_t stride);

int main(void) {
    FILE *in = fopen("cases.bin", "rb"), *out = fopen("results.bin", "wb");
    uint64_t cases;
    if (!in || !out || fread(&cases, 8, 1, in) != 1) return 2;
    for (uint64_t c = 0; c < cases; c++) {
        uint64_t h[2];
        if (fread(h, 8, 2, in) != 2) return 3;
        size_t n = h[0];
        uint64_t *a = malloc(n * 8);
        if (!a || (n && fread(a, 8, n, in) != n)) return 4;
        uint64_t value = walk(a, n, h[1]);
        if (fwrite(&value, 8, 1, out) != 1) return 5;
        free(a);
    }
    return fclose(out) ? 6 : 0;
}
