/* Probes of the memory system: the loops that perflab.memory times.
 *
 * C rather than Python because one step of a Python loop costs as much as hundreds of cache hits.
 * Every function returns elapsed nanoseconds of CLOCK_MONOTONIC around the loop alone; buffers, orders
 * and statistics are the caller's (src/perflab/memory.py). No function allocates or touches memory
 * outside the buffers it is given.
 *
 * The empty __asm__ statements emit no instruction. They stop the optimiser from removing, hoisting or
 * vectorising an access, which would leave a loop that measures nothing.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define OPAQUE(x) __asm__ volatile("" : "+r"(x))
#define CLOBBER() __asm__ volatile("" ::: "memory")
#define CONSUME(x) __asm__ volatile("" : : "r"(x) : "memory")

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ---- dependent loads: latency ------------------------------------------------------------------ */

/* Follow `steps` pointers (rounded up to a multiple of 16) from *position and leave the end there, so
 * that the next call goes on round the ring. Each address comes out of the load before it, so neither
 * out-of-order execution nor a prefetcher can start a load early. */
double pl_chase(void **position, size_t steps) {
    void **p = (void **)*position;
    double start = now_ns();
    for (size_t i = 0; i < steps; i += 16) {
        p = *p; p = *p; p = *p; p = *p; p = *p; p = *p; p = *p; p = *p;
        p = *p; p = *p; p = *p; p = *p; p = *p; p = *p; p = *p; p = *p;
    }
    CONSUME(p);
    double elapsed = now_ns() - start;
    *position = (void *)p;
    return elapsed;
}

/* ---- independent loads: throughput -------------------------------------------------------------- */

/* `sweeps` times: for each first element 0 … offsets-1, read a[first], a[first+stride], … below n.
 * offsets == stride visits every element once. Four sums, so that the additions never wait in line. */
double pl_sweep(const uint64_t *a, size_t n, size_t stride, size_t offsets, size_t sweeps, uint64_t *sum) {
    uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    double start = now_ns();
    for (size_t sweep = 0; sweep < sweeps; sweep++)
        for (size_t first = 0; first < offsets && first < n; first++) {
            size_t left = (n - 1 - first) / stride + 1;
            const uint64_t *p = a + first;
            for (; left >= 4; left -= 4, p += 4 * stride) {
                s0 += p[0]; s1 += p[stride]; s2 += p[2 * stride]; s3 += p[3 * stride];
                OPAQUE(s0); OPAQUE(s1); OPAQUE(s2); OPAQUE(s3);
            }
            for (; left > 0; left--, p += stride) { s0 += *p; OPAQUE(s0); }
        }
    double elapsed = now_ns() - start;
    *sum = s0 + s1 + s2 + s3;
    return elapsed;
}

/* Read every element of a once in a scattered order: a full-period linear congruential sequence modulo n,
 * a power of two (Hull and Dobell 1962). The index doesn't depend on the data: the loads may overlap. */
double pl_scatter(const uint64_t *a, size_t n, uint64_t *sum) {
    uint64_t s = 0, i = 0;
    double start = now_ns();
    for (size_t k = 0; k < n; k++) {
        i = (i * 2862933555777941757u + 3037000493u) & (n - 1);
        s += a[i];
        OPAQUE(s);
    }
    double elapsed = now_ns() - start;
    *sum = s;
    return elapsed;
}

/* ---- alignment: the same 8-byte word again and again, at any address ---------------------------- */

/* The word at p must be 0: it is added to the address of the next load, which must wait for it. */
double pl_load_latency(const unsigned char *p, size_t count) {
    uint64_t x = 0;
    double start = now_ns();
    for (size_t i = 0; i < count; i += 4) {
        memcpy(&x, p + x, 8); memcpy(&x, p + x, 8); memcpy(&x, p + x, 8); memcpy(&x, p + x, 8);
    }
    CONSUME(x);
    return now_ns() - start;
}

double pl_load(const unsigned char *p, size_t count) {
    uint64_t x;
    double start = now_ns();
    for (size_t i = 0; i < count; i += 8) {
        memcpy(&x, p, 8); CONSUME(x); memcpy(&x, p, 8); CONSUME(x);
        memcpy(&x, p, 8); CONSUME(x); memcpy(&x, p, 8); CONSUME(x);
        memcpy(&x, p, 8); CONSUME(x); memcpy(&x, p, 8); CONSUME(x);
        memcpy(&x, p, 8); CONSUME(x); memcpy(&x, p, 8); CONSUME(x);
    }
    return now_ns() - start;
}

double pl_store(unsigned char *p, size_t count) {
    uint64_t x = 0;
    double start = now_ns();
    for (size_t i = 0; i < count; i += 8) {
        memcpy(p, &x, 8); CLOBBER(); memcpy(p, &x, 8); CLOBBER();
        memcpy(p, &x, 8); CLOBBER(); memcpy(p, &x, 8); CLOBBER();
        memcpy(p, &x, 8); CLOBBER(); memcpy(p, &x, 8); CLOBBER();
        memcpy(p, &x, 8); CLOBBER(); memcpy(p, &x, 8); CLOBBER();
    }
    return now_ns() - start;
}

/* ---- several threads ------------------------------------------------------------------------------ */

#define MAX_THREADS 1024

struct team {
    int threads;
    const int *cpus;                 /* NULL: let the system place them */
    void (*work)(struct team *, int);
    void *argument;
    atomic_int gate;                 /* 0: wait, 1: go, -1: the team is not complete, go home */
    atomic_int arrived, phase;
    atomic_int unpinned;             /* how many threads couldn't be tied to their processor */
};

/* A barrier that spins (macOS has no pthread_barrier, and a sleeping barrier wakes threads µs apart). */
static void meet(struct team *team) {
    int phase = atomic_load(&team->phase);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == team->threads) {
        atomic_store(&team->arrived, 0);
        atomic_store(&team->phase, phase + 1);
        return;
    }
    for (long spins = 0; atomic_load(&team->phase) == phase; spins++)
        if (spins > 100000) sched_yield();   /* more threads than processors: let the others arrive */
}

struct member { struct team *team; int index; };

static void *member_main(void *pointer) {
    struct member *member = pointer;
    int pinned = member->team->cpus == NULL;
#ifdef __linux__
    if (!pinned) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(member->team->cpus[member->index], &one);
        pinned = sched_setaffinity(0, sizeof one, &one) == 0;
    }
#endif
    if (!pinned) atomic_fetch_add(&member->team->unpinned, 1);
    while (atomic_load(&member->team->gate) == 0) sched_yield();
    if (atomic_load(&member->team->gate) > 0) member->team->work(member->team, member->index);
    return NULL;
}

/* Returns the number of threads that are not pinned though asked to be, or -1 if a thread couldn't start. */
static int run_team(struct team *team) {
    pthread_t handles[MAX_THREADS];
    struct member members[MAX_THREADS];
    if (team->threads < 1 || team->threads > MAX_THREADS) return -1;
    int started = 0;
    for (; started < team->threads; started++) {
        members[started] = (struct member){team, started};
        if (pthread_create(&handles[started], NULL, member_main, &members[started])) break;
    }
    /* A team that is not complete would wait at its first barrier for ever. */
    int complete = started == team->threads;
    atomic_store(&team->gate, complete ? 1 : -1);
    for (int t = 0; t < started; t++) pthread_join(handles[t], NULL);
    if (!complete) return -1;
    return atomic_load(&team->unpinned);
}

/* ---- bandwidth: the four kernels of STREAM (McCalpin 1995) ---------------------------------------- */

struct stream { double *a, *b, *c; size_t n, repeats; double *ns; };

/* Own functions, so that `restrict` holds and each loop is compiled as it would be alone. A compiler must not
 * replace the copy by a call of memcpy, which past some size uses other stores; gcc has a flag for that. */
#ifdef __clang__
__attribute__((no_builtin("memcpy")))
#endif
__attribute__((noinline)) static void copy(double *restrict c, const double *restrict a, size_t n) {
    for (size_t i = 0; i < n; i++) c[i] = a[i];
}
__attribute__((noinline)) static void scale(double *restrict b, const double *restrict c, size_t n) {
    for (size_t i = 0; i < n; i++) b[i] = 3.0 * c[i];
}
__attribute__((noinline)) static void add(double *restrict c, const double *restrict a,
                                          const double *restrict b, size_t n) {
    for (size_t i = 0; i < n; i++) c[i] = a[i] + b[i];
}
__attribute__((noinline)) static void triad(double *restrict a, const double *restrict b,
                                            const double *restrict c, size_t n) {
    for (size_t i = 0; i < n; i++) a[i] = b[i] + 3.0 * c[i];
}

static void stream_work(struct team *team, int index) {
    struct stream *s = team->argument;
    size_t from = s->n / team->threads * index;
    size_t to = index == team->threads - 1 ? s->n : from + s->n / team->threads;
    double *a = s->a + from, *b = s->b + from, *c = s->c + from;
    /* First touch by the thread that will use the page: on a NUMA machine that decides where it lies. */
    for (size_t i = 0; i < to - from; i++) { a[i] = 1.0; b[i] = 2.0; c[i] = 0.0; }
    for (size_t r = 0; r < s->repeats; r++)
        for (int kernel = 0; kernel < 4; kernel++) {
            meet(team);
            double start = now_ns();
            switch (kernel) {
                case 0: copy(c, a, to - from); break;
                case 1: scale(b, c, to - from); break;
                case 2: add(c, a, b, to - from); break;
                default: triad(a, b, c, to - from);
            }
            meet(team);
            if (index == 0) s->ns[4 * r + kernel] = now_ns() - start;
        }
}

/* ns[4 * repeat + kernel], kernels in the order copy, scale, add, triad. */
int pl_stream(double *a, double *b, double *c, size_t n, size_t repeats, int threads, const int *cpus, double *ns) {
    struct stream s = {a, b, c, n, repeats, ns};
    struct team team = {.threads = threads, .cpus = cpus, .work = stream_work, .argument = &s};
    return run_team(&team);
}

/* ---- false sharing ----------------------------------------------------------------------------------- */

struct sharing { unsigned char *base; size_t distance, count; double *ns; };

static void sharing_work(struct team *team, int index) {
    struct sharing *s = team->argument;
    uint64_t *counter = (uint64_t *)(s->base + (size_t)index * s->distance);
    meet(team);
    double start = now_ns();
    /* One instruction that reads, adds and writes and must own the line for it. */
    for (size_t i = 0; i < s->count; i++) __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
    double elapsed = now_ns() - start;
    s->ns[index] = elapsed;
}

/* Thread t adds 1 to its own counter at base + t·distance, `count` times. ns[t]: its time. */
int pl_sharing(unsigned char *base, size_t distance, size_t count, int threads, const int *cpus, double *ns) {
    struct sharing s = {base, distance, count, ns};
    struct team team = {.threads = threads, .cpus = cpus, .work = sharing_work, .argument = &s};
    return run_team(&team);
}

/* ---- arithmetic: the flat part of a roofline ------------------------------------------------------- */

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
typedef float vector __attribute__((vector_size(VECTOR_BYTES)));
/* More chains than latency × units of today's cores (4 cycles × 2), fewer than 16 registers hold. Named one by
 * one: an array of them is kept in memory by gcc 12, and the loop then measures loads and stores. */
#define CHAINS 12
#define EACH_CHAIN(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

struct arithmetic { size_t count; double *ns; float *sink; };

static void arithmetic_work(struct team *team, int index) {
    struct arithmetic *f = team->argument;
    float half = 0.5f, one = 1.0f;
    OPAQUE(index);
    vector scale = (vector){0} + half, shift = (vector){0} + one;
#define START(j) vector x##j = (vector){0} + (float)(index + j);
    EACH_CHAIN(START)
    meet(team);
    double start = now_ns();
    for (size_t i = 0; i < f->count; i++) {
#define STEP(j) x##j = x##j * scale + shift;   /* converges to 2: never denormal, never infinite */
        EACH_CHAIN(STEP)
    }
#define KEEP(j) total += x##j;
    vector total = (vector){0};
    EACH_CHAIN(KEEP)
    f->sink[index] = total[0];
    CLOBBER();
    f->ns[index] = now_ns() - start;
}

/* Each thread does pl_arithmetic_flops(count) float32 operations, a multiply-add counted as two. */
int pl_arithmetic(size_t count, int threads, const int *cpus, double *ns, float *sink) {
    struct arithmetic f = {count, ns, sink};
    struct team team = {.threads = threads, .cpus = cpus, .work = arithmetic_work, .argument = &f};
    return run_team(&team);
}
double pl_arithmetic_flops(size_t count) {
    return (double)count * CHAINS * (VECTOR_BYTES / sizeof(float)) * 2.0;
}
int pl_vector_bytes(void) { return VECTOR_BYTES; }
