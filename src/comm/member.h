/* What every rank's end has, however its memory is shared: checks, workers, scratch. */
#ifndef MOK_COMM_MEMBER_H
#define MOK_COMM_MEMBER_H

#include "comm/comm.h"

/* Checks a configuration and picks its kernels. Errors: ARGUMENT, DEVICE. */
mok_status mok_member_check(const mok_comm_config *config, int32_t ranks,
                            const mok_kernels **kernels);

/* A rank's end without memory shared and without workers: the caller sets mapping and control, then
 * finishes. Errors: MEMORY. */
mok_status mok_member_begin(mok_comm **out, int32_t rank, int32_t ranks,
                            const mok_comm_config *config, const mok_kernels *kernels);

/* Scratch and workers; `beside` ranks share this machine's processors. On failure mok_comm_close
 * gives back what there is. Errors: MEMORY. */
mok_status mok_member_finish(mok_comm *comm, int32_t beside);

#endif
