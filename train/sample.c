/* Sampling with a temperature; 0 takes the likeliest byte, the lower one among equals.
 *
 * Every new byte runs the model over its whole window again. That costs seconds for a demo, and
 * needs no second form of the forward pass whose bytes would have to be shown to be the same. */
#include "sample.h"

#include <string.h>

/* The byte at which the running sum of exp((z - max) / temperature) passes a uniform share of the
 * whole. */
static uint8_t draw(const float *z, double temperature, uint64_t random)
{
    float e[TRAIN_VOCABULARY];
    int best = 0;
    for (int i = 1; i < TRAIN_VOCABULARY; i++) {
        best = z[i] > z[best] ? i : best;
    }
    if (temperature <= 0.0) {
        return (uint8_t)best;
    }
    for (int i = 0; i < TRAIN_VOCABULARY; i++) {
        e[i] = (z[i] - z[best]) / (float)temperature;
    }
    mok_exp(e, e, TRAIN_VOCABULARY);
    const float target = (float)(random >> 40) * 0x1p-24f * train_sum(e, TRAIN_VOCABULARY);
    float sum = 0.0f;
    for (int i = 0; i < TRAIN_VOCABULARY; i++) {
        sum += e[i];
        if (sum > target) {
            return (uint8_t)i;
        }
    }
    return (uint8_t)best;
}

mok_status sample_text(model *m, const train_text *text, uint8_t *out, int64_t count)
{
    const train_config *config = m->config;
    const int64_t most = config->shape.length;
    const bool first = mok_comm_rank(m->comm) == 0;
    const uint64_t key = train_key(config->seed, TRAIN_STREAM_SAMPLE);
    uint8_t window[16384];
    int64_t used = train_max(1, most / 4);
    memcpy(window, text->bytes + text->held_out_begin, (size_t)used);
    for (int64_t i = 0; i < count; i++) {
        if (used == most) { /* a new window begins with the newer half */
            memmove(window, window + most / 2, (size_t)(most - most / 2));
            used = most - most / 2;
        }
        if (first) {
            memcpy(m->input, window, (size_t)used);
        }
        TRAIN_TRY(model_forward(m, first ? 1 : 0, used));
        uint8_t next = 0;
        if (first) {
            next = draw(m->logits + (used - 1) * TRAIN_VOCABULARY, config->temperature,
                        train_random(key, (uint64_t)i));
        }
        TRAIN_TRY(mok_comm_broadcast(m->comm, &next, 1, 0));
        window[used++] = next;
        out[i] = next;
    }
    return MOK_OK;
}
