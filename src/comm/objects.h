/* Memory that processes of a host share, without names: a memory file, which peers open through its
 * owner's /proc entry while the owner keeps it open. A process that is killed leaves nothing
 * behind, at any moment.
 *
 * Space is reserved before it is used: too little is MOK_ERROR_MEMORY here and not a signal in the
 * middle of a pass. */
#ifndef MOK_COMM_OBJECTS_H
#define MOK_COMM_OBJECTS_H

#include "comm/member.h"

/* How a peer finds an object, and knows that it has found this one. Plain bytes, to be sent. */
typedef struct mok_object {
    int64_t pid;
    int32_t handle; /* -1: there is none */
    int32_t padding;
    uint64_t device, inode, bytes;
} mok_object;

/* What the mappings of processes keep, in parts.c. */
typedef struct mok_shm {
    unsigned char *base; /* all control blocks in one block; NULL where each has its own */
    size_t bytes;
    uint32_t sequence; /* symmetric allocations so far: the same on every rank */
} mok_shm;

/* A process's end, without control blocks yet. Errors: MEMORY. */
mok_status mok_process_begin(mok_comm **out, int32_t rank, int32_t ranks,
                             const mok_comm_config *config, const mok_kernels *kernels);

/* Hands comm to *out, or closes it when status is an error, and returns status with its text. */
mok_status mok_process_end(mok_comm **out, mok_comm *comm, mok_status status);

/* Bytes of a control block: whole pages. */
size_t mok_control_stride(void);

/* A new object, zeroed, reserved and mapped. Errors: MEMORY. */
mok_status mok_object_create(unsigned char **out, mok_object *object, size_t bytes);

/* A peer's object, mapped; NULL where it cannot be opened, or is another one. */
unsigned char *mok_object_map(const mok_object *object);

/* From here on nobody can map it any more; those who have keep it. */
void mok_object_close(mok_object *object);

/* Private memory, zeroed, of which only what is touched is used; NULL when there is none. */
unsigned char *mok_copy_map(size_t bytes);
void mok_unmap(unsigned char *memory, size_t bytes); /* of all the above; accepts NULL */

void mok_pause_ms(long ms);

#endif
