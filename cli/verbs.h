/* The verbs of mok. Each gets its own name as argv[0] and returns the exit code. */
#ifndef CLI_VERBS_H
#define CLI_VERBS_H

int mok_cli_info(int argc, char **argv);
int mok_cli_check(int argc, char **argv);
int mok_cli_bench(int argc, char **argv);
int mok_cli_train(int argc, char **argv);
int mok_cli_trace(int argc, char **argv);
int mok_cli_launch(int argc, char **argv);

#endif
