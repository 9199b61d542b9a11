/* mok check: one batch, every level and every way of splitting it, one digest a class.
 *
 * The first row of a class is the reference level on one rank and one thread; every other row must
 * have its digest. --inject flips one bit of one result, to show that a difference is seen. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "options.h"
#include "verbs.h"
#include "workload.h"

static const verb_help help = {"check",
                               "Compares every implementation level with the reference, then "
                               "repeats, threads, chunk sizes and ranks.",
                               "mok check --json"};

typedef struct row {
    const char *what;
    int32_t ranks, threads;
    mok_level level;
    int64_t macrobatch_rows, minibatch_rows;
    int32_t repeats;
} row;

static const row rows[] = {
    {"reference", 1, 1, MOK_LEVEL_REF, 0, 0, 1},
    {"level avx2", 1, 1, MOK_LEVEL_AVX2, 0, 0, 1},
    {"level avx512", 1, 1, MOK_LEVEL_AVX512, 0, 0, 1},
    {"third repeat", 1, 1, MOK_LEVEL_AUTO, 0, 0, 3},
    {"2 threads", 1, 2, MOK_LEVEL_AUTO, 0, 0, 1},
    {"3 threads", 1, 3, MOK_LEVEL_AUTO, 0, 0, 1},
    {"macrobatch 128", 1, 2, MOK_LEVEL_AUTO, 128, 128, 1},
    {"macrobatch 384", 1, 2, MOK_LEVEL_AUTO, 384, 128, 1},
    {"minibatch 128", 2, 1, MOK_LEVEL_AUTO, 0, 128, 1},
    {"minibatch 256", 2, 2, MOK_LEVEL_AUTO, 0, 256, 1},
    {"2 ranks", 2, 1, MOK_LEVEL_AUTO, 0, 0, 1},
    {"3 ranks", 3, 1, MOK_LEVEL_AUTO, 0, 0, 1},
    {"4 ranks", 4, 1, MOK_LEVEL_AUTO, 0, 0, 1},
    {"6 ranks", 6, 1, MOK_LEVEL_AUTO, 256, 128, 1},
    {"8 ranks", 8, 1, MOK_LEVEL_AUTO, 0, 0, 1},
    {"8 ranks, 2 threads", 8, 2, MOK_LEVEL_AUTO, 128, 128, 1},
};
#define ROWS (sizeof rows / sizeof rows[0])

typedef struct tally {
    int64_t compared, different;
    cJSON *list; /* NULL without --json */
} tally;

static void report(tally *t, const workload *w, const row *r, const char *hex, const char *verdict)
{
    if (t->list == NULL) {
        (void)printf("%-5s %-20s %-32s %s\n", mok_arith_string(w->arith), r->what, hex, verdict);
        (void)fflush(stdout);
        return;
    }
    cJSON *item = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(item, "class", mok_arith_string(w->arith));
    (void)cJSON_AddStringToObject(item, "what", r->what);
    (void)cJSON_AddNumberToObject(item, "ranks", r->ranks);
    (void)cJSON_AddNumberToObject(item, "threads", r->threads);
    (void)cJSON_AddStringToObject(item, "digest", hex);
    (void)cJSON_AddStringToObject(item, "verdict", verdict);
    (void)cJSON_AddItemToArray(t->list, item);
}

/* False when the library failed; a difference is counted, not a failure. */
static bool check_row(tally *t, workload *w, const row *r, mok_digest *first, bool inject)
{
    char why[240] = "";
    char hex[MOK_DIGEST_HEX_BYTES];
    mok_digest digest;
    workload_run run = {r->ranks,          r->threads, r->level, r->macrobatch_rows,
                        r->minibatch_rows, r->repeats, 0.0,      0};
    if (!mok_level_available(r->level)) {
        report(t, w, r, "", "skipped: this CPU lacks it");
        return true;
    }
    mok_status status = workload_step(w, &run, why);
    if (status == MOK_OK && inject) {
        w->dx[0] ^= 1;
    }
    status = status != MOK_OK ? status : workload_digest(w, &digest);
    if (status != MOK_OK) {
        (void)fprintf(stderr, "mok check: %s: %s: %s\n", r->what, mok_status_string(status),
                      why[0] != '\0' ? why : mok_last_error());
        return false;
    }
    mok_digest_hex(hex, &digest);
    if (r->level == MOK_LEVEL_REF) {
        *first = digest;
        report(t, w, r, hex, "the definition");
        return true;
    }
    const bool equal = memcmp(&digest, first, sizeof digest) == 0;
    t->compared++;
    t->different += equal ? 0 : 1;
    report(t, w, r, hex, equal ? "equal" : "DIFFERENT");
    return true;
}

static bool check_class(tally *t, mok_arith arith, bool quick, bool inject)
{
    workload w;
    mok_digest first = {0, 0};
    memset(&w, 0, sizeof w);
    w.tokens = quick ? 48 : 192;
    w.hidden = quick ? 48 : 112;
    w.inner = quick ? 40 : 144;
    w.shared_inner = quick ? 24 : 80;
    w.experts = 12;
    w.slots = 3;
    w.lanes = 24;
    w.arith = arith;
    w.seed = 1;
    bool ran = workload_open(&w);
    for (size_t i = 0; i < ROWS && ran; i++) {
        ran = check_row(t, &w, &rows[i], &first, inject && i + 1 == ROWS);
    }
    workload_close(&w);
    return ran;
}

static int finish(tally *t, cJSON *root, bool ran)
{
    const bool good = ran && t->compared > 0 && t->different == 0;
    if (root == NULL) {
        (void)printf("compared %" PRId64 "\ndifferent %" PRId64 "\n", t->compared, t->different);
        return good ? EXIT_CODE_OK : EXIT_CODE_FAULT;
    }
    (void)cJSON_AddNumberToObject(root, "compared", (double)t->compared);
    (void)cJSON_AddNumberToObject(root, "different", (double)t->different);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    (void)printf("%s\n", text != NULL ? text : "{}");
    cJSON_free(text);
    return good && text != NULL ? EXIT_CODE_OK : EXIT_CODE_FAULT;
}

int mok_cli_check(int argc, char **argv)
{
    bool json = false;
    bool quick = false;
    bool inject = false;
    const option table[] = {
        {"json", OPTION_FLAG, &json, NULL, "one JSON object with compared, different and rows"},
        {"quick", OPTION_FLAG, &quick, NULL, "a smaller batch"},
        {"inject", OPTION_FLAG, &inject, NULL,
         "flip one bit of the last result, which must be found"},
    };
    const int code = options_parse(argc, argv, &help, table, 3);
    if (code >= 0) {
        return code;
    }
    cJSON *root = json ? cJSON_CreateObject() : NULL;
    tally t = {0, 0, json ? cJSON_AddArrayToObject(root, "rows") : NULL};
    const bool ran = check_class(&t, MOK_ARITH_TC16, quick, inject) &&
                     check_class(&t, MOK_ARITH_FMA, quick, inject);
    return finish(&t, root, ran);
}
