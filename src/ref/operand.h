/* Reading one element of a product's operand. */
#ifndef MOK_REF_OPERAND_H
#define MOK_REF_OPERAND_H

#include "cpu/kernels.h"

static inline uint16_t mok_operand_at(const mok_operand *operand, int64_t row, int64_t k)
{
    return operand->transposed ? operand->data[k * operand->stride + row]
                               : operand->data[row * operand->stride + k];
}

#endif
