/* Fuzz target: bytes become a layer's configuration and routes; open, build, read. Whatever they
 * say, the answer is a status, and a schedule that was built is one that executors can walk. */
#include <mok/mok.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The next number of the input; 0 behind its end. */
static int64_t take(const uint8_t **data, size_t *size, int64_t bound)
{
    uint32_t value = 0;
    const size_t count = *size < sizeof value ? *size : sizeof value;
    memcpy(&value, *data, count);
    *data += count;
    *size -= count;
    return bound > 0 ? (int64_t)(value % (uint32_t)bound) : (int64_t)(int32_t)value;
}

static void check_view(const mok_schedule *schedule, const mok_tensor *routes)
{
    mok_schedule_view view;
    view.struct_bytes = sizeof view;
    if (mok_schedule_read(schedule, &view) != MOK_OK) {
        abort();
    }
    int64_t live = 0;
    for (int64_t i = 0; i < view.row_count; i++) {
        const bool padding = view.peer_rank[i] < 0;
        if (padding != (view.peer_slot[i] < 0) ||
            (!padding && view.peer_slot[i] >= routes->shape[0] * routes->shape[1])) {
            abort();
        }
        live += padding ? 0 : 1;
    }
    for (int64_t e = 0; e < view.expert_count; e++) {
        live -= view.count_per_expert[e];
    }
    if (live != 0 || view.row_count % MOK_ROW_BLOCK != 0) {
        abort();
    }
}

static void build(mok_layer *layer, const uint8_t *data, size_t size, int64_t tokens, int64_t slots,
                  bool wide)
{
    mok_schedule *schedule = NULL;
    const size_t count = (size_t)(tokens * slots);
    void *values = calloc(count + 1, sizeof(int64_t));
    if (values == NULL || mok_schedule_open(&schedule, layer) != MOK_OK) {
        free(values);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const int64_t value = i < size ? (int64_t)(int8_t)data[i] : -1;
        if (wide) {
            ((int64_t *)values)[i] = value;
        } else {
            ((int32_t *)values)[i] = (int32_t)value;
        }
    }
    const mok_tensor routes =
        mok_tensor_2d(values, wide ? MOK_DTYPE_I64 : MOK_DTYPE_I32, tokens, slots);
    if (mok_schedule_build(schedule, layer, &routes) == MOK_OK) {
        check_view(schedule, &routes);
    }
    mok_schedule_close(&schedule);
    free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mok_comm *comm = NULL;
    mok_layer *layer = NULL;
    mok_layer_config config;
    mok_layer_config_init(&config);
    const bool wild = take(&data, &size, 8) == 0; /* any numbers at all: most must be refused */
    config.hidden = take(&data, &size, wild ? 0 : 40);
    config.intermediate = take(&data, &size, wild ? 0 : 40);
    config.shared_intermediate = take(&data, &size, wild ? 0 : 20);
    config.experts = take(&data, &size, wild ? 0 : 24);
    config.slots = take(&data, &size, wild ? 0 : 6);
    config.max_tokens = take(&data, &size, wild ? 0 : 60);
    config.capacity_rows = take(&data, &size, wild ? 0 : 6) * 128;
    config.macrobatch_rows = take(&data, &size, wild ? 0 : 4) * 128;
    config.minibatch_rows = take(&data, &size, wild ? 0 : 4) * 128;
    const bool wide = take(&data, &size, 2) == 1;
    const int64_t tokens = take(&data, &size, 64);
    mok_layer_sizes sizes;
    sizes.struct_bytes = sizeof sizes;
    const bool valid = mok_layer_sizes_query(&sizes, &config, 1, 0, 1) == MOK_OK;
    const bool small = valid && sizes.arena_bytes + sizes.workspace_bytes < (size_t)1 << 24 &&
                       sizes.schedule_bytes < (size_t)1 << 24;
    if (small && mok_comm_open_local(&comm, 1, NULL) == MOK_OK) {
        if (mok_layer_open(&layer, comm, &config) == MOK_OK) {
            build(layer, data, size, tokens, config.slots, wide);
        }
        mok_layer_close(&layer);
        mok_comm_close(&comm);
    }
    return 0;
}
