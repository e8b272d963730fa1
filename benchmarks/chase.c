/* A pointer chase written independently of src/perflab/csrc/probes.c, to check perflab.memory.latency by.
 *
 *     chase BYTES STEPS HUGE      prints ns a load
 *
 * It shares with the other only what defines the quantity: one cycle of lines, each line holding the address of the
 * next (an index would add the cycle that turns it into an address). Shuffle, loop, clock and process are its own. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

struct line { struct line *next; char rest[64 - sizeof(struct line *)]; };

static uint64_t state = 88172645463325252u;
static uint64_t random64(void) {   /* xorshift64 (Marsaglia 2003) */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static double now_s(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: chase BYTES STEPS HUGE\n");
        return 2;
    }
    size_t lines = strtoull(argv[1], NULL, 10) / sizeof(struct line), steps = strtoull(argv[2], NULL, 10);
    size_t page = 2u << 20, bytes = (lines * sizeof(struct line) + page - 1) / page * page;
    void *memory;
    if (posix_memalign(&memory, page, bytes)) return 1;
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, atoi(argv[3]) ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
    struct line *line = memory;
    for (size_t i = 0; i < lines; i++) line[i].next = &line[i];
    for (size_t i = lines - 1; i > 0; i--) {   /* Sattolo 1986: j < i, never i itself, makes one cycle */
        size_t j = random64() % i;
        struct line *swap = line[i].next;
        line[i].next = line[j].next;
        line[j].next = swap;
    }
    struct line *at = line;
    for (size_t i = 0; i < lines && i < (1u << 19); i++) at = at->next;
    double best_s = 1e300;
    for (int round = 0; round < 5; round++) {
        double start_s = now_s();
        for (size_t i = 0; i < steps; i++) at = at->next;
        double took_s = now_s() - start_s;
        if (took_s < best_s) best_s = took_s;
    }
    if (at < line || at >= line + lines) return 1;   /* uses the result: nothing above may be optimised away */
    printf("%.4f\n", best_s * 1e9 / (double)steps);
    return 0;
}
