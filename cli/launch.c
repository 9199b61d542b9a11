/* mok launch: N processes of one command on this host, as ranks that share memory.
 *
 * Each gets MOK_RANK, MOK_RANKS and MOK_SHM. When one ends badly the others notice by themselves
 * within their deadline; whoever is still there after --grace seconds more is killed. Children die
 * with the launcher. Behind the last of them no name of theirs is left in /dev/shm. */
#define _DEFAULT_SOURCE /* prctl's header */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "group.h"
#include "options.h"
#include "verbs.h"

static const verb_help help = {
    "launch",
    "Runs a command as N ranks that share memory: mok launch --ranks N [options] -- COMMAND ...",
    "mok launch --ranks 4 -- mok train --data data/text.txt --size tiny --out out"};

typedef struct children {
    pid_t pid[MOK_MAX_RANKS];
    int32_t count, left;
    int code;       /* of the first that ended badly, else 0 */
    double first_s; /* when that was; 0 when all is well */
} children;

static volatile sig_atomic_t signalled = 0;

static void on_signal(int number)
{
    signalled = number;
}

static void set_number(const char *name, int64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%" PRId64, value);
    (void)setenv(name, text, 1);
}

/* Does not return. */
static void become(char **command, int32_t rank, int64_t ranks, const char *name, pid_t parent)
{
    set_number("MOK_RANK", rank);
    set_number("MOK_RANKS", ranks);
    (void)setenv("MOK_SHM", name, 1);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(EXIT_CODE_FAULT); /* the launcher went before that was set */
    }
    (void)execvp(command[0], command);
    (void)fprintf(stderr, "mok launch: %s: %s\n", command[0], strerror(errno));
    _exit(EXIT_CODE_USAGE);
}

static void kill_all(const children *c, int number)
{
    for (int32_t rank = 0; rank < c->count; rank++) {
        if (c->pid[rank] > 0) {
            (void)kill(c->pid[rank], number);
        }
    }
}

static bool start(children *c, char **command, int64_t ranks, const char *name)
{
    const pid_t parent = getpid();
    for (; c->count < ranks; c->count++) {
        const pid_t pid = fork();
        if (pid == 0) {
            become(command, c->count, ranks, name, parent);
        }
        if (pid < 0) {
            (void)fprintf(stderr, "mok launch: fork: %s\n", strerror(errno));
            kill_all(c, SIGKILL);
            return false;
        }
        c->pid[c->count] = pid;
        c->left++;
    }
    return true;
}

static void note_end(children *c, pid_t pid, int status)
{
    int32_t rank = 0;
    while (rank < c->count && c->pid[rank] != pid) {
        rank++;
    }
    if (rank == c->count) {
        return;
    }
    c->pid[rank] = 0;
    c->left--;
    const bool killed = WIFSIGNALED(status);
    const int code = killed ? EXIT_CODE_FAULT : WEXITSTATUS(status);
    if (code != 0 && c->code == 0) {
        c->code = code;
        c->first_s = group_now_s();
        if (killed) {
            (void)fprintf(stderr, "mok launch: rank %d was killed by signal %d\n", rank,
                          WTERMSIG(status));
        } else {
            (void)fprintf(stderr, "mok launch: rank %d ended with code %d\n", rank, code);
        }
    }
}

static int wait_for_all(children *c, double grace_s)
{
    bool forwarded = false;
    while (c->left > 0) {
        int status = 0;
        const pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid > 0) {
            note_end(c, pid, status);
            continue;
        }
        if (signalled != 0 && !forwarded) {
            kill_all(c, signalled);
            forwarded = true;
            c->first_s = c->first_s > 0.0 ? c->first_s : group_now_s();
        }
        if (c->first_s > 0.0 && group_now_s() - c->first_s > grace_s) {
            (void)fprintf(stderr, "mok launch: %d ranks are still there after %.0f s: killed\n",
                          c->left, grace_s);
            kill_all(c, SIGKILL);
            c->first_s = group_now_s();
        }
        const struct timespec pause = {0, 20 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    return c->code != 0 ? c->code : signalled != 0 ? EXIT_CODE_FAULT : EXIT_CODE_OK;
}

/* Ranks take the name of their memory away before they leave the opening (src/comm/shm.c). Where
 * all of them were killed before that, nobody else would. */
static void take_name_away(const char *name)
{
    char object[80];
    (void)snprintf(object, sizeof object, "/mok.%s", name);
    (void)shm_unlink(object);
}

/* Where the command begins: behind "--". */
static int command_at(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            return i + 1;
        }
    }
    return argc;
}

int mok_cli_launch(int argc, char **argv)
{
    int64_t ranks = 2;
    double grace_s = 120.0;
    const option table[] = {
        {"ranks", OPTION_INT, &ranks, "N", "1..64; default 2"},
        {"grace", OPTION_REAL, &grace_s, "S",
         "seconds that ranks get after one has failed; default 120"},
    };
    const int at = command_at(argc, argv);
    const int code = options_parse(at < argc ? at - 1 : argc, argv, &help, table, 2);
    if (code >= 0) {
        return code;
    }
    if (at >= argc || ranks < 1 || ranks > MOK_MAX_RANKS || grace_s < 0.0) {
        (void)fprintf(stderr, "mok launch: %s; see mok launch --help\n",
                      at >= argc ? "no command behind --"
                                 : "--ranks must be 1..64 and --grace at least 0");
        return EXIT_CODE_USAGE;
    }
    char name[64];
    struct timespec now;
    children c;
    memset(&c, 0, sizeof c);
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)snprintf(name, sizeof name, "%ld-%ld-%ld", (long)getpid(), (long)now.tv_sec, now.tv_nsec);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    const bool started = start(&c, argv + at, ranks, name);
    const int end = wait_for_all(&c, grace_s);
    take_name_away(name);
    return started ? end : EXIT_CODE_FAULT;
}
