/* mok: picks the verb. */
#include <mok/mok.h>
#include <stdio.h>
#include <string.h>

#include "options.h"
#include "verbs.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *purpose;
} verbs[] = {
    {"info", mok_cli_info, "what this machine and this build have"},
    {"check", mok_cli_check,
     "prove that every implementation and every split gives the same bytes"},
    {"bench", mok_cli_bench, "measure products and the whole layer"},
    {"train", mok_cli_train, "train a mixture-of-experts language model on a text"},
    {"launch", mok_cli_launch, "run a command as several processes that share memory"},
    {"trace", mok_cli_trace, "record what each block of the GPU does in a forward pass"},
};

static void print_usage(FILE *to)
{
    (void)fprintf(to, "usage: mok VERB [options]\n\n");
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        (void)fprintf(to, "  %-8s %s\n", verbs[i].name, verbs[i].purpose);
    }
    (void)fprintf(to, "\n  mok VERB --help   options and an example\n  mok --version\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_CODE_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage(stdout);
        return EXIT_CODE_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        const int32_t version = mok_version();
        (void)printf("mok %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
        return EXIT_CODE_OK;
    }
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(argv[1], verbs[i].name) == 0) {
            return verbs[i].run(argc - 1, argv + 1);
        }
    }
    (void)fprintf(stderr, "mok: unknown verb '%s'\n", argv[1]);
    print_usage(stderr);
    return EXIT_CODE_USAGE;
}
