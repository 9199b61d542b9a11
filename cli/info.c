/* mok info: the version, the machine, the levels. */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "group.h"
#include "options.h"
#include "verbs.h"

static const verb_help help = {"info", "Says what this build is and what this machine has.",
                               "mok info --json"};

static const mok_level levels[] = {MOK_LEVEL_REF, MOK_LEVEL_AVX2, MOK_LEVEL_AVX512};
#define LEVELS (sizeof levels / sizeof levels[0])

#ifdef MOK_HAVE_CUDA
#define CUDA_BUILT true
#else
#define CUDA_BUILT false
#endif

static void version_text(char *out, size_t bytes)
{
    const int32_t version = mok_version();
    (void)snprintf(out, bytes, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static mok_level best_level(void)
{
    mok_level best = MOK_LEVEL_REF;
    for (size_t i = 0; i < LEVELS; i++) {
        best = mok_level_available(levels[i]) ? levels[i] : best;
    }
    return best;
}

static int print_json(void)
{
    char version[24];
    version_text(version, sizeof version);
    cJSON *root = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(root, "version", version);
    (void)cJSON_AddNumberToObject(root, "processors", group_processors());
    cJSON *list = cJSON_AddObjectToObject(root, "levels");
    for (size_t i = 0; i < LEVELS; i++) {
        (void)cJSON_AddBoolToObject(list, mok_level_string(levels[i]),
                                    mok_level_available(levels[i]));
    }
    (void)cJSON_AddStringToObject(root, "level", mok_level_string(best_level()));
    (void)cJSON_AddBoolToObject(root, "cuda_built", CUDA_BUILT);
    (void)cJSON_AddNumberToObject(root, "max_ranks", MOK_MAX_RANKS);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (text == NULL) {
        return EXIT_CODE_FAULT;
    }
    (void)printf("%s\n", text);
    cJSON_free(text);
    return EXIT_CODE_OK;
}

int mok_cli_info(int argc, char **argv)
{
    bool json = false;
    char version[24];
    const option table[] = {{"json", OPTION_FLAG, &json, NULL, "one JSON object"}};
    const int code = options_parse(argc, argv, &help, table, 1);
    if (code >= 0) {
        return code;
    }
    if (json) {
        return print_json();
    }
    version_text(version, sizeof version);
    (void)printf("libmok %s\nprocessors  %d\nlevels     ", version, group_processors());
    for (size_t i = 0; i < LEVELS; i++) {
        (void)printf(" %s%s", mok_level_string(levels[i]),
                     mok_level_available(levels[i]) ? "" : " (not here)");
    }
    (void)printf("\nin use      %s\nclasses     %s %s\ncuda        %s\n",
                 mok_level_string(best_level()), mok_arith_string(MOK_ARITH_TC16),
                 mok_arith_string(MOK_ARITH_FMA), CUDA_BUILT ? "built" : "not built");
    return EXIT_CODE_OK;
}
