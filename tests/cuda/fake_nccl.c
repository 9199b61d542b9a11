/* A libnccl.so.2 for tests without a GPU: it counts what it is asked for and fails where it is
 * told. FAKE_NCCL_VERSION, FAKE_NCCL_FAIL (a function's name), FAKE_NCCL_FAIL_RANK; the build
 * without FAKE_NCCL_PEERS has no ncclGetPeerDevicePointer, as 2.28 has none. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct fake_id {
    char bytes[128];
} fake_id;

typedef struct fake_comm {
    int ranks, rank;
} fake_comm;

/* Things that are open: they must be none at the end. */
int fake_nccl_open(void);
int ncclGetVersion(int *version);
int ncclGetUniqueId(fake_id *id);
int ncclCommInitRank(void **comm, int ranks, fake_id id, int rank);
int ncclCommDestroy(void *comm);
int ncclMemAlloc(void **memory, size_t bytes);
int ncclMemFree(void *memory);
int ncclCommWindowRegister(void *comm, void *memory, size_t bytes, void **window, int flags);
int ncclCommWindowDeregister(void *comm, void *window);
const char *ncclGetErrorString(int result);
int ncclGetPeerDevicePointer(void *window, size_t offset, int peer, void **address);

static _Atomic int open_count;
static _Thread_local int this_rank;

static int fails(const char *name)
{
    const char *chosen = getenv("FAKE_NCCL_FAIL");
    const char *rank = getenv("FAKE_NCCL_FAIL_RANK");
    return chosen != NULL && strcmp(chosen, name) == 0 &&
           (rank == NULL || this_rank == (int)strtol(rank, NULL, 10));
}

int fake_nccl_open(void)
{
    return open_count;
}

int ncclGetVersion(int *version)
{
    const char *text = getenv("FAKE_NCCL_VERSION");
    *version = text != NULL ? (int)strtol(text, NULL, 10) : 22809;
    return 0;
}

int ncclGetUniqueId(fake_id *id)
{
    memset(id, 0x6B, sizeof *id);
    return fails("ncclGetUniqueId") ? 3 : 0;
}

int ncclCommInitRank(void **comm, int ranks, fake_id id, int rank)
{
    this_rank = rank;
    const char *multicast = getenv("NCCL_NVLS_ENABLE");
    fake_comm *c = malloc(sizeof *c);
    if (c == NULL || fails("ncclCommInitRank") || id.bytes[0] != 0x6B || id.bytes[127] != 0x6B ||
        multicast == NULL || strcmp(multicast, "0") != 0) {
        free(c);
        return 5;
    }
    c->ranks = ranks;
    c->rank = rank;
    *comm = c;
    open_count++;
    return 0;
}

int ncclCommDestroy(void *comm)
{
    free(comm);
    open_count--;
    return 0;
}

int ncclMemAlloc(void **memory, size_t bytes)
{
    if (fails("ncclMemAlloc")) {
        return 1;
    }
    *memory = malloc(bytes);
    open_count++;
    return *memory != NULL ? 0 : 1;
}

int ncclMemFree(void *memory)
{
    free(memory);
    open_count--;
    return 0;
}

int ncclCommWindowRegister(void *comm, void *memory, size_t bytes, void **window, int flags)
{
    if (fails("ncclCommWindowRegister") || comm == NULL || bytes == 0 || flags != 1) {
        return 4;
    }
    *window = memory;
    open_count++;
    return 0;
}

int ncclCommWindowDeregister(void *comm, void *window)
{
    open_count--;
    return comm != NULL && window != NULL ? 0 : 4;
}

const char *ncclGetErrorString(int result)
{
    static const char *const texts[] = {"no error",       "unhandled cuda error", "system error",
                                        "internal error", "invalid argument",     "invalid usage"};
    return result >= 0 && result < 6 ? texts[result] : "unknown";
}

#ifdef FAKE_NCCL_PEERS
int ncclGetPeerDevicePointer(void *window, size_t offset, int peer, void **address)
{
    *address = fails("reach") ? NULL : (char *)window + 64 + peer + offset;
    return fails("ncclGetPeerDevicePointer") ? 4 : 0;
}
#endif
