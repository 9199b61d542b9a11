/* Memory files and private copies; see objects.h. */
#define _GNU_SOURCE /* memfd_create, MAP_ANONYMOUS, MAP_NORESERVE */
#include "comm/objects.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES ((size_t)4096)

size_t mok_control_stride(void)
{
    return (sizeof(mok_control) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

void mok_pause_ms(long ms)
{
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static size_t at_least_one(size_t bytes)
{
    return bytes > 0 ? bytes : 1;
}

static unsigned char *map_shared(int handle, size_t bytes)
{
    void *base = mmap(NULL, at_least_one(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    return base == MAP_FAILED ? NULL : base;
}

mok_status mok_object_create(unsigned char **out, mok_object *object, size_t bytes)
{
    struct stat about;
    memset(object, 0, sizeof *object);
    object->handle = memfd_create("mok", MFD_CLOEXEC);
    MOK_REQUIRE(object->handle >= 0, MOK_ERROR_MEMORY, "shared memory of %zu bytes: %s", bytes,
                strerror(errno));
    int error = posix_fallocate(object->handle, 0, (off_t)at_least_one(bytes));
    if (error == 0 && fstat(object->handle, &about) != 0) {
        error = errno;
    }
    *out = error == 0 ? map_shared(object->handle, bytes) : NULL;
    if (*out == NULL) {
        error = error != 0 ? error : errno;
        mok_object_close(object);
        return mok_fail(MOK_ERROR_MEMORY, "shared memory of %zu bytes: %s", bytes, strerror(error));
    }
    object->pid = getpid();
    object->device = (uint64_t)about.st_dev;
    object->inode = (uint64_t)about.st_ino;
    object->bytes = bytes;
    return MOK_OK;
}

unsigned char *mok_object_map(const mok_object *object)
{
    char path[64];
    struct stat about;
    unsigned char *base = NULL;
    (void)snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)object->pid, object->handle);
    const int handle = object->handle >= 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (handle < 0) {
        return NULL;
    }
    /* Where processes are numbered anew, that number may be another process. */
    if (fstat(handle, &about) == 0 && (uint64_t)about.st_dev == object->device &&
        (uint64_t)about.st_ino == object->inode &&
        (uint64_t)about.st_size == at_least_one(object->bytes)) {
        base = map_shared(handle, object->bytes);
    }
    (void)close(handle);
    return base;
}

void mok_object_close(mok_object *object)
{
    if (object->handle >= 0) {
        (void)close(object->handle);
        object->handle = -1;
    }
}

unsigned char *mok_copy_map(size_t bytes)
{
    void *base = mmap(NULL, at_least_one(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

void mok_unmap(unsigned char *memory, size_t bytes)
{
    if (memory != NULL) {
        (void)munmap(memory, at_least_one(bytes));
    }
}
