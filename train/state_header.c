/* The safetensors header.
 *
 * It is a function of the configuration, the step and the digests alone, so that reading can make
 * the header it expects and demand it byte for byte: there is no second, laxer description of a
 * valid file. */
#include "state.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "libmok training state 1"

int64_t state_entry_count(const params *p)
{
    return (int64_t)STATE_KINDS * p->count + 1;
}

void state_entry_list(state_entry *out, const params *p)
{
    static const char *const kinds[STATE_KINDS] = {"master", "m", "v"};
    int64_t at = 0;
    state_entry *entry = out;
    memset(out, 0, (size_t)state_entry_count(p) * sizeof *out);
    for (int kind = 0; kind < STATE_KINDS; kind++) {
        for (int32_t i = 0; i < p->count; i++, entry++) {
            const param *item = &p->list[i];
            (void)snprintf(entry->name, sizeof entry->name, "%s/%s", kinds[kind], item->name);
            int64_t count = 1;
            if (item->kind == PARAM_EXPERT) {
                entry->shape[entry->rank++] = p->shape.experts;
            }
            for (int32_t axis = 0; axis < item->rank; axis++) {
                entry->shape[entry->rank++] = item->shape[axis];
            }
            for (int32_t axis = 0; axis < entry->rank; axis++) {
                count *= entry->shape[axis];
            }
            entry->begin = at;
            entry->bytes = count * (int64_t)sizeof(float);
            at += entry->bytes;
        }
    }
    (void)snprintf(entry->name, sizeof entry->name, "router.bias");
    entry->rank = 2;
    entry->shape[0] = p->shape.blocks;
    entry->shape[1] = p->shape.experts;
    entry->begin = at;
    entry->bytes = p->shape.blocks * p->shape.experts * (int64_t)sizeof(float);
}

static bool add_text(cJSON *object, const char *name, const char *value)
{
    return cJSON_AddStringToObject(object, name, value) != NULL;
}

static bool add_metadata(cJSON *root, const train_config *config, const state_facts *facts)
{
    char number[40];
    char hex[MOK_DIGEST_HEX_BYTES];
    train_identity identity;
    cJSON *metadata = cJSON_AddObjectToObject(root, "__metadata__");
    bool whole = metadata != NULL && add_text(metadata, "format", FORMAT);
    train_config_identity(&identity, config);
    for (int i = 0; i < TRAIN_IDENTITY_COUNT && whole; i++) {
        whole = add_text(metadata, identity.name[i], identity.value[i]);
    }
    (void)snprintf(number, sizeof number, "%" PRId64, facts->step);
    whole = whole && add_text(metadata, "step", number);
    mok_digest_hex(hex, &facts->text);
    whole = whole && add_text(metadata, "text_digest", hex);
    mok_digest_hex(hex, &facts->digest);
    return whole && add_text(metadata, "state_digest", hex);
}

/* Whole numbers by hand: cJSON's are doubles and would print large ones in another form. */
static bool add_entry(cJSON *root, const state_entry *entry)
{
    char text[160];
    int used = snprintf(text, sizeof text, "{\"dtype\":\"F32\",\"shape\":[");
    for (int32_t axis = 0; axis < entry->rank; axis++) {
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%" PRId64, axis > 0 ? "," : "",
                         entry->shape[axis]);
    }
    (void)snprintf(text + used, sizeof text - (size_t)used,
                   "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", entry->begin,
                   entry->begin + entry->bytes);
    return cJSON_AddRawToObject(root, entry->name, text) != NULL;
}

/* Length word, then JSON, filled up with spaces to a multiple of 8. */
static unsigned char *wrap(size_t *bytes, const char *json)
{
    const size_t length = strlen(json);
    const size_t padded = (length + 7) / 8 * 8;
    unsigned char *out = malloc(8 + padded);
    if (out == NULL) {
        return NULL;
    }
    for (int i = 0; i < 8; i++) {
        out[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    }
    memset(out + 8, ' ', padded);
    memcpy(out + 8, json, length);
    *bytes = 8 + padded;
    return out;
}

unsigned char *state_header(size_t *bytes, const train_config *config, const params *p,
                            const state_facts *facts)
{
    const int64_t count = state_entry_count(p);
    state_entry *entries = malloc((size_t)count * sizeof *entries);
    cJSON *root = cJSON_CreateObject();
    bool whole = entries != NULL && root != NULL && add_metadata(root, config, facts);
    if (whole) {
        state_entry_list(entries, p);
    }
    for (int64_t i = 0; i < count && whole; i++) {
        whole = add_entry(root, &entries[i]);
    }
    char *json = whole ? cJSON_PrintUnformatted(root) : NULL;
    unsigned char *out = json != NULL ? wrap(bytes, json) : NULL;
    cJSON_free(json);
    cJSON_Delete(root);
    free(entries);
    return out;
}

static const char *text_of(const cJSON *metadata, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(metadata, name);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool digest_of(mok_digest *out, const char *hex)
{
    uint64_t words[2] = {0, 0};
    if (hex == NULL || strlen(hex) != MOK_DIGEST_HEX_BYTES - 1) {
        return false;
    }
    for (int i = 0; i < MOK_DIGEST_HEX_BYTES - 1; i++) {
        const int digit = hex_digit(hex[i]);
        if (digit < 0) {
            return false;
        }
        words[i / 16] = words[i / 16] << 4 | (uint64_t)digit;
    }
    out->high = words[0];
    out->low = words[1];
    return true;
}

static bool step_of(int64_t *out, const char *text)
{
    int64_t value = 0;
    if (text == NULL || text[0] == '\0' || strlen(text) > 12) {
        return false;
    }
    for (const char *c = text; *c != '\0'; c++) {
        if (*c < '0' || *c > '9') {
            return false;
        }
        value = value * 10 + (*c - '0');
    }
    *out = value;
    return true;
}

static mok_status read_metadata(state_facts *out, const cJSON *metadata, const train_config *config,
                                char *why)
{
    train_identity identity;
    const char *format = text_of(metadata, "format");
    if (format == NULL || strcmp(format, FORMAT) != 0) {
        return train_fail(why, MOK_ERROR_FILE, "checkpoint: not a file of format '%s'", FORMAT);
    }
    train_config_identity(&identity, config);
    for (int i = 0; i < TRAIN_IDENTITY_COUNT; i++) {
        const char *value = text_of(metadata, identity.name[i]);
        if (value == NULL || strcmp(value, identity.value[i]) != 0) {
            return train_fail(
                why, MOK_ERROR_FILE, "checkpoint: it was made with %s %s, this run has %s",
                identity.name[i], value == NULL ? "(none)" : value, identity.value[i]);
        }
    }
    if (!step_of(&out->step, text_of(metadata, "step")) ||
        !digest_of(&out->digest, text_of(metadata, "state_digest")) ||
        !digest_of(&out->text, text_of(metadata, "text_digest"))) {
        return train_fail(why, MOK_ERROR_FILE,
                          "checkpoint: altered: step or digests are not readable");
    }
    return MOK_OK;
}

mok_status state_header_read(state_facts *out, const char *json, size_t bytes,
                             const train_config *config, char *why)
{
    cJSON *root = cJSON_ParseWithLength(json, bytes);
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(root, "__metadata__");
    const mok_status status =
        cJSON_IsObject(metadata)
            ? read_metadata(out, metadata, config, why)
            : train_fail(why, MOK_ERROR_FILE,
                         "checkpoint: the header is not JSON with __metadata__");
    cJSON_Delete(root);
    return status;
}
