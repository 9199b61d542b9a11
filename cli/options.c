/* Parsing and help. */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_help(const verb_help *help, const option *options, int count)
{
    (void)printf("usage: mok %s [options]\n%s\n\n", help->verb, help->purpose);
    for (int i = 0; i < count; i++) {
        char left[48];
        (void)snprintf(left, sizeof left, "--%s%s%s", options[i].name,
                       options[i].argument != NULL ? " " : "",
                       options[i].argument != NULL ? options[i].argument : "");
        (void)printf("  %-24s %s\n", left, options[i].help);
    }
    (void)printf(
        "  %-24s %s\n\nexample:\n  %s\n\nexit codes: 0 ok, 1 a difference or a fault, 2 usage\n",
        "--help", "this text", help->example);
}

static const option *find(const option *options, int count, const char *name, size_t length)
{
    for (int i = 0; i < count; i++) {
        if (strlen(options[i].name) == length && strncmp(options[i].name, name, length) == 0) {
            return &options[i];
        }
    }
    return NULL;
}

static bool store(const option *item, const char *text)
{
    char *end = NULL;
    errno = 0;
    switch (item->kind) {
    case OPTION_INT: {
        const long long value = strtoll(text, &end, 10);
        if (end == text || *end != '\0' || errno != 0) {
            return false;
        }
        *(int64_t *)item->value = value;
        return true;
    }
    case OPTION_REAL: {
        const double value = strtod(text, &end);
        if (end == text || *end != '\0' || !isfinite(value)) {
            return false;
        }
        *(double *)item->value = value;
        return true;
    }
    case OPTION_TEXT:
        *(const char **)item->value = text;
        return true;
    case OPTION_FLAG:
        break;
    }
    return false;
}

static int complain(const verb_help *help, const char *what, const char *text)
{
    (void)fprintf(stderr, "mok %s: %s '%s'; see mok %s --help\n", help->verb, what, text,
                  help->verb);
    return EXIT_CODE_USAGE;
}

int options_parse(int argc, char **argv, const verb_help *help, const option *options, int count)
{
    for (int i = 1; i < argc; i++) {
        const char *text = argv[i];
        if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0) {
            print_help(help, options, count);
            return EXIT_CODE_OK;
        }
        if (strncmp(text, "--", 2) != 0) {
            return complain(help, "what is", text);
        }
        const char *equals = strchr(text, '=');
        const size_t length = equals != NULL ? (size_t)(equals - text) - 2 : strlen(text) - 2;
        const option *item = find(options, count, text + 2, length);
        if (item == NULL) {
            return complain(help, "unknown option", text);
        }
        if (item->kind == OPTION_FLAG) {
            if (equals != NULL) {
                return complain(help, "no value belongs to", text);
            }
            *(bool *)item->value = true;
            continue;
        }
        const char *value = equals != NULL ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (value == NULL || !store(item, value)) {
            return complain(
                help, value == NULL ? "a value is missing for" : "cannot read the value of", text);
        }
    }
    return -1;
}
