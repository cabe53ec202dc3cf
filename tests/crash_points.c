/* Preloaded (LD_PRELOAD) into a process: counts what it asks of the file system, and at a place
 * that was told kills it, also halfway through a write, or lets the system refuse.
 *
 * With a log, it is written there what reached the disk: the size of each file as it was synced,
 * and the names in each directory. Files that lose their name meanwhile are kept in the graveyard,
 * so that a test can make what is left if the machine dies: see `disk_after_power_loss`.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COUNT, DIE, DIE_HALFWAY, REFUSE_ONE, REFUSE_ALL };
enum { GO, HALFWAY, REFUSE };

static int armed, what, refusal, sync_log = -1;
static long counted, place;
static char graveyard[4096];

void crash_arm(int what_to_do, long at, int error)
{
    what = what_to_do;
    place = at;
    refusal = error;
    counted = 0;
    armed = 1;
}

long crash_disarm(void)
{
    armed = 0;
    return counted;
}

void crash_log(int file, const char *kept)
{
    sync_log = file;
    snprintf(graveyard, sizeof graveyard, "%s", kept);
}

static int fate(int is_write)
{
    long now;
    if (!armed)
        return GO;
    now = counted++;
    if (what == COUNT || now < place || (what == REFUSE_ONE && now > place))
        return GO;
    if (what == REFUSE_ONE || what == REFUSE_ALL) {
        errno = refusal;
        return REFUSE;
    }
    if (what == DIE_HALFWAY && is_write)
        return HALFWAY;
    kill(getpid(), SIGKILL);
    return REFUSE;      /* not reached */
}

static int is_file(int file)
{
    struct stat status;
    return armed && fstat(file, &status) == 0 && S_ISREG(status.st_mode);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Half of it is written, and then? */
#define WRITES(file, size, whole, half)         \
    switch (is_file(file) ? fate(1) : GO) {     \
    case HALFWAY:                               \
        half;                                   \
        kill(getpid(), SIGKILL);                \
    case REFUSE:                                \
        half;                                   \
        errno = refusal;                        \
        return -1;                              \
    }                                           \
    return whole

ssize_t write(int file, const void *bytes, size_t size)
{
    WRITES(file, size, REAL(write)(file, bytes, size), REAL(write)(file, bytes, size / 2));
}

ssize_t pwrite(int file, const void *bytes, size_t size, off_t at)
{
    WRITES(file, size, REAL(pwrite)(file, bytes, size, at),
           REAL(pwrite)(file, bytes, size / 2, at));
}

ssize_t pwrite64(int file, const void *bytes, size_t size, off64_t at)
{
    return pwrite(file, bytes, size, at);
}

int ftruncate(int file, off_t size)
{
    return fate(0) == GO ? REAL(ftruncate)(file, size) : -1;
}

int ftruncate64(int file, off64_t size)
{
    return ftruncate(file, size);
}

static void tell(int file)
{
    struct stat status, inside;
    struct dirent *entry;
    char path[64];
    DIR *directory;
    if (sync_log < 0 || fstat(file, &status) != 0)
        return;
    if (!S_ISDIR(status.st_mode)) {
        dprintf(sync_log, "file %lu %ld\n", (unsigned long)status.st_ino, (long)status.st_size);
        return;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    directory = opendir(path);
    if (!directory)
        return;
    dprintf(sync_log, "directory %lu\n", (unsigned long)status.st_ino);
    while ((entry = readdir(directory))) {
        if (fstatat(dirfd(directory), entry->d_name, &inside, AT_SYMLINK_NOFOLLOW) == 0
            && entry->d_name[0] != '.')
            dprintf(sync_log, "name %lu %s\n", (unsigned long)inside.st_ino, entry->d_name);
    }
    closedir(directory);
}

int fsync(int file)
{
    int done = fate(0) == GO ? REAL(fsync)(file) : -1;
    if (done == 0)
        tell(file);
    return done;
}

static void keep(const char *path)
{
    struct stat status;
    char kept[5000];
    if (sync_log < 0 || lstat(path, &status) != 0 || !S_ISREG(status.st_mode))
        return;
    snprintf(kept, sizeof kept, "%s/%lu", graveyard, (unsigned long)status.st_ino);
    REAL(link)(path, kept);
}

int unlink(const char *path)
{
    if (fate(0) != GO)
        return -1;
    keep(path);
    return REAL(unlink)(path);
}

int rename(const char *path, const char *target)
{
    if (fate(0) != GO)
        return -1;
    keep(target);
    return REAL(rename)(path, target);
}

int link(const char *path, const char *target)
{
    return fate(0) == GO ? REAL(link)(path, target) : -1;
}

int linkat(int from, const char *path, int to, const char *target, int flags)
{
    return fate(0) == GO ? REAL(linkat)(from, path, to, target, flags) : -1;
}

int mkdir(const char *path, mode_t mode)
{
    return fate(0) == GO ? REAL(mkdir)(path, mode) : -1;
}

static int changes(int flags)
{
    return armed && (flags & (O_CREAT | O_WRONLY | O_RDWR));
}

#define OPENS(name)                                                 \
    int name(const char *path, int flags, ...)                      \
    {                                                               \
        va_list more;                                               \
        mode_t mode;                                                \
        va_start(more, flags);                                      \
        mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                               \
        if (changes(flags) && fate(0) != GO)                        \
            return -1;                                              \
        return REAL(name)(path, flags, mode);                       \
    }

OPENS(open)
OPENS(open64)
