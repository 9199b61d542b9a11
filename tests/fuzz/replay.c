/* Runs a fuzz target without libFuzzer: fixed pseudo-random inputs, and mutations of the files it
 * is given. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t state = 0x9E3779B97F4A7C15u;

static uint64_t next(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1DULL;
}

static void run_random(int count)
{
    uint8_t data[400];
    for (int i = 0; i < count; i++) {
        const size_t size = (size_t)(next() >> 20) % sizeof data;
        for (size_t at = 0; at < size; at++) {
            data[at] = (uint8_t)(next() >> 33);
        }
        (void)LLVMFuzzerTestOneInput(data, size);
    }
}

static int run_file(const char *path, int count)
{
    static uint8_t whole[1 << 20];
    static uint8_t changed[1 << 20];
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        (void)fprintf(stderr, "replay: cannot open %s\n", path);
        return 1;
    }
    const size_t size = fread(whole, 1, sizeof whole, file);
    (void)fclose(file);
    (void)LLVMFuzzerTestOneInput(whole, size);
    for (int i = 0; i < count && size > 0; i++) {
        memcpy(changed, whole, size);
        for (int edit = 0; edit < 1 + i % 4; edit++) {
            changed[next() % size] = (uint8_t)(next() >> 40);
        }
        (void)LLVMFuzzerTestOneInput(changed, i % 3 == 0 ? (size_t)next() % size : size);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0;
    run_random(3000);
    for (int i = 1; i < argc; i++) {
        failed |= run_file(argv[i], 2000);
    }
    (void)printf("replayed\n");
    return failed;
}
