/* Command-line options: a table a verb, one parser, one way of printing help.
 *
 * Options are --name VALUE or --name=VALUE; a flag takes no value. What cannot be parsed is named
 * on the error stream and ends in exit code 2. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* Exit codes of every verb. */
#define EXIT_CODE_OK 0
#define EXIT_CODE_FAULT 1 /* a difference, or a failure while running */
#define EXIT_CODE_USAGE 2

typedef enum option_kind {
    OPTION_FLAG = 1, /* bool */
    OPTION_INT,      /* int64_t */
    OPTION_REAL,     /* double */
    OPTION_TEXT      /* const char * */
} option_kind;

typedef struct option {
    const char *name; /* without dashes */
    option_kind kind;
    void *value;
    const char *argument; /* what help calls the value; NULL for a flag */
    const char *help;
} option;

typedef struct verb_help {
    const char *verb;
    const char *purpose;
    const char *example;
} verb_help;

/* Parses argv[1..]. Returns -1 to go on, or the exit code to leave with (0 after --help). Every
 * verb has
 * --help. */
int options_parse(int argc, char **argv, const verb_help *help, const option *options, int count);

#endif
