/* NCCL's symmetric windows, from a libnccl.so.2 that is loaded when somebody asks for it.
 *
 * Nothing of NCCL computes or moves rows here: it allocates memory that all ranks of an NVLink
 * domain can address, and says where each rank's lies. A library that the process has already
 * loaded (PyTorch's) is the one that is used, since two of them must not meet. Its multicast is
 * switched off before it starts, unless the user has said otherwise. */
#define _GNU_SOURCE /* RTLD_NOLOAD */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/peers.h"

#define OLDEST 22800         /* windows with device addresses */
#define PEER_ADDRESSES 22902 /* ncclGetPeerDevicePointer */
#define SYMMETRIC 1          /* NCCL_WIN_COLL_SYMMETRIC */

/* NCCL's types and functions, as nccl.h of 2.28 has them. */
typedef struct nccl_id {
    char bytes[128];
} nccl_id;

typedef struct nccl_functions {
    int (*GetVersion)(int *version);
    int (*GetUniqueId)(nccl_id *id);
    int (*CommInitRank)(void **comm, int ranks, nccl_id id, int rank);
    int (*CommDestroy)(void *comm);
    int (*MemAlloc)(void **memory, size_t bytes);
    int (*MemFree)(void *memory);
    int (*CommWindowRegister)(void *comm, void *memory, size_t bytes, void **window, int flags);
    int (*CommWindowDeregister)(void *comm, void *window);
    const char *(*GetErrorString)(int result);
    int (*GetPeerDevicePointer)(void *window, size_t offset, int peer,
                                void **address); /* or NULL */
} nccl_functions;

struct mok_nccl {
    void *library;
    nccl_functions call;
    int version;
    void *comm, *memory, *window;
};

static mok_status find(void *library, const char *name, void *to, bool needed)
{
    void *symbol = dlsym(library, name);
    MOK_REQUIRE(symbol != NULL || !needed, MOK_ERROR_UNSUPPORTED, "libnccl.so.2 has no %s", name);
    memcpy(to, &symbol, sizeof symbol);
    return MOK_OK;
}

static mok_status load(mok_nccl *n)
{
    nccl_functions *call = &n->call;
    n->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (n->library == NULL) {
        n->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    }
    MOK_REQUIRE(n->library != NULL, MOK_ERROR_UNSUPPORTED, "libnccl.so.2 cannot be loaded: %s",
                dlerror());
    MOK_TRY(find(n->library, "ncclGetVersion", &call->GetVersion, true));
    MOK_REQUIRE(call->GetVersion(&n->version) == 0 && n->version >= OLDEST, MOK_ERROR_UNSUPPORTED,
                "libnccl.so.2 is version %d, must be at least %d", n->version, OLDEST);
    MOK_TRY(find(n->library, "ncclGetUniqueId", &call->GetUniqueId, true));
    MOK_TRY(find(n->library, "ncclCommInitRank", &call->CommInitRank, true));
    MOK_TRY(find(n->library, "ncclCommDestroy", &call->CommDestroy, true));
    MOK_TRY(find(n->library, "ncclMemAlloc", &call->MemAlloc, true));
    MOK_TRY(find(n->library, "ncclMemFree", &call->MemFree, true));
    MOK_TRY(find(n->library, "ncclCommWindowRegister", &call->CommWindowRegister, true));
    MOK_TRY(find(n->library, "ncclCommWindowDeregister", &call->CommWindowDeregister, true));
    MOK_TRY(find(n->library, "ncclGetErrorString", &call->GetErrorString, true));
    return find(n->library, "ncclGetPeerDevicePointer", &call->GetPeerDevicePointer, false);
}

static mok_status check(const mok_nccl *n, int result, const char *what)
{
    MOK_REQUIRE(result == 0, MOK_ERROR_DEVICE, "%s: %s", what, n->call.GetErrorString(result));
    return MOK_OK;
}

static mok_status start(mok_nccl *n, mok_comm *comm)
{
    nccl_id id;
    memset(&id, 0, sizeof id);
    const int32_t rank = mok_comm_rank(comm);
    const mok_status made =
        rank == 0 ? check(n, n->call.GetUniqueId(&id), "ncclGetUniqueId") : MOK_OK;
    MOK_TRY(mok_comm_agree(comm, made));
    MOK_TRY(mok_comm_broadcast(comm, &id, sizeof id, 0));
    return check(n, n->call.CommInitRank(&n->comm, mok_comm_size(comm), id, rank),
                 "ncclCommInitRank");
}

/* A pointer for every rank; the window may not reach all of them. */
static mok_status addresses(const mok_nccl *n, const mok_comm *comm, void *peer[MOK_CUDA_MAX_RANKS])
{
    for (int32_t r = 0; r < mok_comm_size(comm); r++) {
        peer[r] = r == mok_comm_rank(comm) ? n->memory : NULL;
        if (r != mok_comm_rank(comm)) {
            MOK_TRY(check(n, n->call.GetPeerDevicePointer(n->window, 0, r, &peer[r]),
                          "ncclGetPeerDevicePointer"));
        }
        MOK_REQUIRE(
            peer[r] != NULL, MOK_ERROR_UNSUPPORTED,
            "rank %d cannot address rank %d's memory: they are not in one NVLink domain, or "
            "ranks of a host do not follow each other",
            mok_comm_rank(comm), r);
    }
    return MOK_OK;
}

/* Each step is agreed on, since the next one waits for all ranks. */
static mok_status make_window(mok_nccl *n, mok_comm *comm, size_t bytes)
{
    MOK_TRY(mok_comm_agree(comm, start(n, comm)));
    MOK_TRY(mok_comm_agree(comm, check(n, n->call.MemAlloc(&n->memory, bytes), "ncclMemAlloc")));
    return mok_comm_agree(
        comm, check(n, n->call.CommWindowRegister(n->comm, n->memory, bytes, &n->window, SYMMETRIC),
                    "ncclCommWindowRegister"));
}

mok_status mok_nccl_open(mok_nccl **out, mok_comm *comm, size_t bytes,
                         void *peer[MOK_CUDA_MAX_RANKS])
{
    mok_nccl *n = calloc(1, sizeof *n);
    *out = n;
    (void)setenv("NCCL_NVLS_ENABLE", "0", 0);
    mok_status status = n != NULL ? load(n) : mok_fail(MOK_ERROR_MEMORY, "no memory for NCCL");
    if (status == MOK_OK && mok_comm_size(comm) > 1 && n->call.GetPeerDevicePointer == NULL) {
        status = mok_fail(MOK_ERROR_UNSUPPORTED,
                          "libnccl.so.2 is version %d; several ranks need %d, for peers' addresses",
                          n->version, PEER_ADDRESSES);
    }
    status = mok_comm_agree(comm, status);
    status = status == MOK_OK ? make_window(n, comm, bytes) : status;
    status = status == MOK_OK ? mok_comm_agree(comm, addresses(n, comm, peer)) : status;
    if (status != MOK_OK) {
        char text[MOK_ERROR_TEXT_BYTES];
        memcpy(text, mok_last_error(), sizeof text);
        mok_nccl_close(out);
        mok_error_text_set(text);
    }
    return status;
}

void mok_nccl_close(mok_nccl **nccl)
{
    mok_nccl *n = *nccl;
    *nccl = NULL;
    if (n == NULL) {
        return;
    }
    if (n->window != NULL) {
        (void)n->call.CommWindowDeregister(n->comm, n->window);
    }
    if (n->memory != NULL) {
        (void)n->call.MemFree(n->memory);
    }
    if (n->comm != NULL) {
        (void)n->call.CommDestroy(n->comm);
    }
    if (n->library != NULL) {
        (void)dlclose(n->library);
    }
    free(n);
}
