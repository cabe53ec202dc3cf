/* Writing a file at a place, cutting it and having it on disk: until done, whatever interrupts.
 * Each function returns 0, or the errno of what went wrong. */

#ifndef CELLIUM_FILES_H
#define CELLIUM_FILES_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#include <io.h>
#else
#include <fcntl.h>
#include <unistd.h>
#endif

/* What one system call is asked to write: some systems refuse 2 GiB. */
#define WRITE_AT_ONCE ((size_t)1 << 30)

static inline int write_at(int file, const void *bytes, size_t size, int64_t offset)
{
    const char *rest = (const char *)bytes;
    while (size) {
        size_t part = size < WRITE_AT_ONCE ? size : WRITE_AT_ONCE;
#if defined(_WIN32)
        int written = -1;
        if (_lseeki64(file, offset, SEEK_SET) >= 0)
            written = _write(file, rest, (unsigned)part);
#else
        ssize_t written = pwrite(file, rest, part, (off_t)offset);
#endif
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)       /* nothing, and no reason given: there is no room */
            return written < 0 ? errno : ENOSPC;
        rest += written;
        offset += written;
        size -= (size_t)written;
    }
    return 0;
}

static inline int cut_file(int file, int64_t size)
{
#if defined(_WIN32)
    return _chsize_s(file, size);
#else
    while (ftruncate(file, (off_t)size) < 0) {
        if (errno != EINTR)
            return errno;
    }
    return 0;
#endif
}

static inline int sync_file(int file)
{
#if defined(_WIN32)
    return _commit(file) < 0 ? errno : 0;
#elif defined(F_FULLFSYNC)
    /* Elsewhere than on macOS fsync waits for the disk; there it needs to be asked for. */
    if (fcntl(file, F_FULLFSYNC) == 0)
        return 0;
    while (fsync(file) < 0) {
        if (errno != EINTR)
            return errno;
    }
    return 0;
#else
    while (fsync(file) < 0) {
        if (errno != EINTR)
            return errno;
    }
    return 0;
#endif
}

#endif
