/* A rank's end: configuration, workers and scratch; the mapping does the rest. */
#include "comm/member.h"
#include "comm/mail.h"

#include <string.h>
#include <unistd.h>

void mok_comm_config_init(mok_comm_config *config)
{
    if (config != NULL) {
        memset(config, 0, sizeof *config);
        config->struct_bytes = sizeof *config;
        config->threads = 1;
        config->timeout_ms = 30000;
        config->level = MOK_LEVEL_AUTO;
        config->allocator = mok_allocator_default();
    }
}

static size_t scratch_stride(const mok_kernels *kernels)
{
    return (size_t)mok_round_up((int64_t)kernels->product_scratch_bytes, MOK_CACHE_LINE) +
           2 * sizeof(float) * MOK_TILE_ROWS * MOK_TILE_COLS;
}

size_t mok_comm_bytes(const mok_kernels *kernels, int32_t threads)
{
    return sizeof(mok_comm) + sizeof(mok_control) + mok_pool_bytes(threads) +
           scratch_stride(kernels) * (size_t)threads;
}

mok_worker_scratch mok_comm_scratch(const mok_comm *comm, int32_t worker)
{
    unsigned char *base = comm->scratch + comm->scratch_stride * (size_t)worker;
    const size_t tile = sizeof(float) * MOK_TILE_ROWS * MOK_TILE_COLS;
    mok_worker_scratch scratch;
    scratch.product = base;
    scratch.tile[0] = (float *)(void *)(base + comm->scratch_stride - 2 * tile);
    scratch.tile[1] = (float *)(void *)(base + comm->scratch_stride - tile);
    return scratch;
}

mok_status mok_member_check(const mok_comm_config *config, int32_t ranks,
                            const mok_kernels **kernels)
{
    MOK_REQUIRE(ranks >= 1 && ranks <= MOK_MAX_RANKS, MOK_ERROR_ARGUMENT,
                "ranks is %d, must be 1..%d", ranks, MOK_MAX_RANKS);
    MOK_REQUIRE(config->struct_bytes == sizeof *config, MOK_ERROR_ARGUMENT,
                "config.struct_bytes is %zu, must be %zu", config->struct_bytes, sizeof *config);
    MOK_REQUIRE(config->threads >= 1 && config->threads <= 256, MOK_ERROR_ARGUMENT,
                "config.threads is %d, must be 1..256", config->threads);
    MOK_REQUIRE(config->timeout_ms >= 1 && config->timeout_ms <= 86400000, MOK_ERROR_ARGUMENT,
                "config.timeout_ms is %d, must be 1..86400000", config->timeout_ms);
    MOK_REQUIRE(config->level >= MOK_LEVEL_AUTO && config->level <= MOK_LEVEL_AVX512,
                MOK_ERROR_ARGUMENT, "config.level is %d, unknown", (int)config->level);
    MOK_REQUIRE(config->allocator.allocate != NULL && config->allocator.release != NULL,
                MOK_ERROR_ARGUMENT, "config.allocator has a NULL function");
    *kernels = mok_kernels_select(config->level);
    MOK_REQUIRE(*kernels != NULL, MOK_ERROR_DEVICE, "this CPU or build lacks level %s",
                mok_level_string(config->level));
    return MOK_OK;
}

mok_status mok_member_begin(mok_comm **out, int32_t rank, int32_t ranks,
                            const mok_comm_config *config, const mok_kernels *kernels)
{
    mok_comm *comm = mok_allocate(&config->allocator, sizeof *comm);
    MOK_REQUIRE(comm != NULL, MOK_ERROR_MEMORY, "no memory for rank %d", rank);
    memset(comm, 0, sizeof *comm);
    comm->rank = rank;
    comm->size = ranks;
    comm->threads = config->threads;
    comm->timeout_ms = config->timeout_ms;
    comm->allocator = config->allocator;
    comm->kernels = kernels;
    *out = comm;
    return MOK_OK;
}

mok_status mok_member_finish(mok_comm *comm, int32_t beside)
{
    comm->scratch_stride = scratch_stride(comm->kernels);
    comm->scratch_bytes = comm->scratch_stride * (size_t)comm->threads;
    comm->scratch = mok_allocate(&comm->allocator, comm->scratch_bytes);
    MOK_REQUIRE(comm->scratch != NULL, MOK_ERROR_MEMORY, "no memory for the scratch of %d workers",
                comm->threads);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int32_t spin_count = (long)beside * comm->threads <= cores ? 4000 : 0;
    return mok_pool_open(&comm->pool, &comm->allocator, comm->threads, spin_count);
}

void mok_comm_close(mok_comm **comm)
{
    if (comm == NULL || *comm == NULL) {
        return;
    }
    mok_comm *old = *comm;
    *comm = NULL;
    const mok_allocator allocator = old->allocator;
    mok_pool_close(&old->pool);
    mok_release(&allocator, old->scratch, old->scratch_bytes);
    old->mapping->leave(old);
    mok_release(&allocator, old, sizeof *old);
}

int32_t mok_comm_rank(const mok_comm *comm)
{
    return comm != NULL ? comm->rank : -1;
}

int32_t mok_comm_size(const mok_comm *comm)
{
    return comm != NULL ? comm->size : 0;
}

int32_t mok_comm_threads(const mok_comm *comm)
{
    return comm != NULL ? comm->threads : 0;
}

mok_level mok_comm_level(const mok_comm *comm)
{
    return comm != NULL ? comm->kernels->level : MOK_LEVEL_AUTO;
}

/* ---- Symmetric memory ---- */

mok_status mok_symmetric_allocate(mok_comm *comm, mok_symmetric *out, size_t bytes, mok_phase phase)
{
    memset(out, 0, sizeof *out);
    return comm->mapping->allocate(comm, out, bytes, phase);
}

void mok_symmetric_release(mok_comm *comm, mok_symmetric *symmetric)
{
    if (symmetric->peer[comm->rank] != NULL) {
        comm->mapping->release(comm, symmetric);
    }
    memset(symmetric, 0, sizeof *symmetric);
}

void mok_symmetric_put(mok_comm *comm, const mok_symmetric *symmetric, int32_t peer, void *at,
                       const void *data, size_t bytes)
{
    if (comm->remote[peer]) {
        const size_t offset = (size_t)((unsigned char *)at - symmetric->peer[peer]);
        mok_mail_put(comm, peer, symmetric, peer, offset, data, bytes);
    } else {
        memcpy(at, data, bytes);
    }
}

void mok_symmetric_show(mok_comm *comm, const mok_symmetric *symmetric, int32_t peer,
                        const void *at, size_t bytes)
{
    if (comm->remote[peer]) {
        const size_t offset = (size_t)((const unsigned char *)at - symmetric->peer[comm->rank]);
        mok_mail_put(comm, peer, symmetric, comm->rank, offset, at, bytes);
    }
}
