/* Numbers that ranks hold by lane or by expert, brought together in global order.
 *
 * Every rank fills its own places of a table that is alike on all ranks; the tables are gathered
 * and each place is taken from the rank that owns it. Nothing is summed here, so nothing depends on
 * who owns what. */
#ifndef TRAIN_EXCHANGE_H
#define TRAIN_EXCHANGE_H

#include "model.h"

typedef enum exchange_axis {
    EXCHANGE_LANES = 1,  /* the table's columns are the global lanes */
    EXCHANGE_EXPERTS = 2 /* the global experts */
} exchange_axis;

/* table [rows, columns] of elements of element_bytes. Collective. Errors: MEMORY, PEER. */
mok_status exchange_table(const model *m, void *table, int64_t rows, exchange_axis axis,
                          size_t element_bytes);

/* The mean loss of a batch from every rank's lane_loss, lanes ascending. Collective. */
mok_status exchange_loss(const model *m, double *loss);

#endif
