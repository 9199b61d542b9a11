/* Random data, guarded memory and verdicts of the harness. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BAND 256
#define BAND_BYTE 0xC3

uint64_t check_next(check *c)
{
    uint64_t x = c->state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    c->state = x;
    return x * 0x2545F4914F6CDD1DULL;
}

int64_t check_below(check *c, int64_t bound)
{
    return (int64_t)((check_next(c) >> 16) % (uint64_t)bound);
}

int64_t check_size(check *c, int64_t most)
{
    static const int64_t edges[] = {0, 1, 2, 8, 15, 16, 31, 32, 33, 64, 100, 128, 200, 256};
    const int64_t edge = edges[check_below(c, (int64_t)(sizeof edges / sizeof edges[0]))];
    const int64_t size =
        check_below(c, 3) == 0 ? 1 + check_below(c, most) : edge + check_below(c, 3) - 1;
    return size < 0 ? 0 : size > most ? most : size;
}

mood check_mood(check *c)
{
    return (mood)check_below(c, MOODS);
}

/* Bits of an fp32 with the given biased exponent and random fraction and sign. */
static uint32_t bits_of(check *c, int64_t exponent)
{
    const uint64_t draw = check_next(c);
    return (uint32_t)(draw & 0x80000000u) | (uint32_t)exponent << 23 |
           (uint32_t)(draw >> 40 & 0x7FFFFFu);
}

static uint32_t draw_bits(check *c, mood m)
{
    const int64_t one_in_16 = check_below(c, 16);
    const float integer = (float)(check_below(c, 33) - 16);
    uint32_t bits = 0;
    switch (m) {
    case MOOD_INTEGERS:
        memcpy(&bits, &integer, sizeof bits);
        return bits;
    case MOOD_BELL:
        return bits_of(c, 123 + check_below(c, 5));
    case MOOD_WIDE:
        return bits_of(c, 60 + check_below(c, 130));
    case MOOD_SUBNORMAL:
        return bits_of(c, one_in_16 < 8 ? 0 : check_below(c, 40));
    case MOOD_ZEROS:
        return one_in_16 < 10 ? (uint32_t)(check_next(c) & 0x80000000u) : bits_of(c, 127);
    case MOOD_HUGE:
        return bits_of(c, 185 + check_below(c, 70));
    case MOOD_SPECIAL:
        return one_in_16 == 0   ? 0x7F800000u | (uint32_t)(check_next(c) & 0x80000000u)
               : one_in_16 == 1 ? bits_of(c, 255)
                                : bits_of(c, 125 + check_below(c, 4));
    case MOOD_CANCEL:
        return (uint32_t)(check_next(c) & 0x80000000u) | (uint32_t)(120 + check_below(c, 14)) << 23;
    default:
        return (uint32_t)(check_next(c) >> 32);
    }
}

uint16_t check_bf16(check *c, mood m)
{
    return (uint16_t)(draw_bits(c, m) >> 16);
}

float check_f32(check *c, mood m)
{
    const uint32_t bits = draw_bits(c, m);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- Memory ---- */

static void give_up(const char *what)
{
    (void)fprintf(stderr, "mok-check-kernels: %s\n", what);
    exit(1);
}

guarded guarded_open(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t used = (bytes + page - 1) / page * page;
    guarded g = {NULL, bytes, NULL, used + page};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect((unsigned char *)g.map + used, page, PROT_NONE) != 0) {
        give_up("no memory for a guarded block");
    }
    g.data = (unsigned char *)g.map + used - bytes;
    return g;
}

void guarded_close(guarded *g)
{
    (void)munmap(g->map, g->map_bytes);
    memset(g, 0, sizeof *g);
}

banded banded_open(check *c, size_t bytes, size_t alignment)
{
    banded b = {NULL, bytes, malloc(bytes + 2 * BAND + 64)};
    if (b.block == NULL) {
        give_up("no memory for an output");
    }
    const size_t shift = (size_t)check_below(c, (int64_t)(64 / alignment)) * alignment;
    const size_t base = (64 - (uintptr_t)b.block % 64) % 64;
    b.data = b.block + base + BAND - 64 + shift;
    return b;
}

void banded_fill(banded *b, unsigned char poison)
{
    const size_t before = (size_t)(b->data - b->block);
    memset(b->block, BAND_BYTE, b->bytes + 2 * BAND + 64);
    memset(b->block + before, poison, b->bytes);
}

bool banded_whole(const banded *b)
{
    const size_t before = (size_t)(b->data - b->block);
    for (size_t i = 0; i < b->bytes + 2 * BAND + 64; i++) {
        const bool inside = i >= before && i < before + b->bytes;
        if (!inside && b->block[i] != BAND_BYTE) {
            return false;
        }
    }
    return true;
}

void banded_close(banded *b)
{
    free(b->block);
    memset(b, 0, sizeof *b);
}

/* ---- Verdicts ---- */

static void complain(const check *c, const char *what)
{
    (void)printf("%s, level %s, seed %llu: ", what, mok_level_string(c->candidate->level),
                 (unsigned long long)c->seed);
}

void check_equal(check *c, const char *what, const void *got, const void *want, size_t bytes,
                 size_t element)
{
    const unsigned char *a = got;
    const unsigned char *b = want;
    c->compared++;
    if (memcmp(a, b, bytes) == 0) {
        return;
    }
    size_t at = 0;
    while (a[at] == b[at]) {
        at++;
    }
    at -= at % element;
    uint32_t got_bits = 0;
    uint32_t want_bits = 0;
    memcpy(&got_bits, a + at, element);
    memcpy(&want_bits, b + at, element);
    if (c->different++ < 20) {
        complain(c, what);
        (void)printf("element %zu is %0*x, must be %0*x\n  again: mok-check-kernels --seed %llu\n",
                     at / element, (int)(2 * element), got_bits, (int)(2 * element), want_bits,
                     (unsigned long long)c->seed);
    }
}

void check_true(check *c, const char *what, bool held)
{
    c->compared++;
    if (!held && c->different++ < 20) {
        complain(c, what);
        (void)printf("does not hold\n  again: mok-check-kernels --seed %llu\n",
                     (unsigned long long)c->seed);
    }
}

double check_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
