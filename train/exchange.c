/* Gathering tables by owner.
 *
 * Whole tables are gathered although a rank fills only its part: they are small, every rank sends
 * equally many bytes, and which part is whose follows from the same split that handed out lanes and
 * experts. */
#include "exchange.h"

#include <stdlib.h>
#include <string.h>

mok_status exchange_table(const model *m, void *table, int64_t rows, exchange_axis axis,
                          size_t element_bytes)
{
    const train_config *config = m->config;
    const int32_t ranks = config->ranks;
    const int64_t columns = axis == EXCHANGE_LANES ? config->lanes : config->shape.experts;
    const size_t row_bytes = (size_t)columns * element_bytes;
    const size_t bytes = (size_t)rows * row_bytes;
    unsigned char *all = malloc(bytes * (size_t)ranks + 1);
    mok_status status = mok_comm_agree(m->comm, all != NULL ? MOK_OK : MOK_ERROR_MEMORY);
    if (status == MOK_OK) {
        status = mok_comm_allgather(m->comm, all, table, bytes);
    }
    for (int32_t rank = 0; rank < ranks && status == MOK_OK; rank++) {
        const size_t begin = (size_t)train_split_begin(columns, ranks, rank) * element_bytes;
        const size_t count = (size_t)train_split_count(columns, ranks, rank) * element_bytes;
        for (int64_t row = 0; row < rows; row++) {
            memcpy((unsigned char *)table + (size_t)row * row_bytes + begin,
                   all + (size_t)rank * bytes + (size_t)row * row_bytes + begin, count);
        }
    }
    free(all);
    return status;
}

mok_status exchange_loss(const model *m, double *loss)
{
    double lanes[TRAIN_MAX_LANES] = {0.0};
    for (int64_t lane = 0; lane < m->lanes; lane++) {
        lanes[m->lane_begin + lane] = m->lane_loss[lane];
    }
    TRAIN_TRY(exchange_table(m, lanes, 1, EXCHANGE_LANES, sizeof(double)));
    double sum = 0.0;
    for (int64_t lane = 0; lane < m->config->lanes; lane++) {
        sum += lanes[lane];
    }
    *loss = sum / (double)train_batch_tokens(m->config);
    return MOK_OK;
}
