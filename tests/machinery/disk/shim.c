/* Stands between a process and the system calls that change files below one directory.
 *
 *   count    every such call has a number, from 1
 *   kill     SIGKILL just before the N-th call, or in its midst: half of a write is there, any other call was made
 *   fail     the N-th sync with EIO; writes from the N-th on with ENOSPC, until space returns
 *   trace    each call that was made, with its bytes, and what the program has to say in between
 *
 * Loaded with LD_PRELOAD, set by the process itself (shim.py). Seen is what goes through the C library's functions for
 * file descriptors. RocksDB's text LOG is left out: it tells what happened, and no store is made of it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { KILL_BEFORE = 1, KILL_WITHIN = 2, FAIL_SYNC = 3, FILL_DISK = 4 };

enum { WRITE = 1, SYNC_BEGINS, SYNC_ENDS, SYNC_FAILS, CREATE, TRUNCATE, RENAME, UNLINK, MKDIR, LINK, MARK };

struct record {
    uint32_t kind, path_size, other_size, data_size;
    uint64_t inode, number;
};

static char root[PATH_MAX];
static size_t root_size;
static atomic_int is_armed;
static atomic_int mode;
static atomic_long first, last;
static atomic_long calls, writes, syncs;
static atomic_int trace = -1;
static pthread_mutex_t tracing = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name, type, ...)                                                                                          \
    static type (*real_##name)(__VA_ARGS__);                                                                           \
    if (!real_##name) real_##name = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

/* --- What the program says ---------------------------------------------------------------------------------------- */

/* Only names below this directory count, which has no slash at its end. Nothing is armed yet. */
void holdfast_watch(const char *directory) {
    snprintf(root, sizeof root, "%s", directory);
    root_size = strlen(root);
    mode = 0;
    atomic_store(&calls, 0);
    atomic_store(&writes, 0);
    atomic_store(&syncs, 0);
    atomic_store(&is_armed, 1);
}

/* Calls, syncs or writes, as the mode counts them, from `from` to `to`. */
void holdfast_arm(int what, long from, long to) {
    first = from;
    last = to;
    mode = what; /* last: another thread may be writing */
}

void holdfast_disarm(void) {
    atomic_store(&is_armed, 0);
    mode = 0;
    trace = -1;
}

long holdfast_calls(void) { return atomic_load(&calls); }
long holdfast_writes(void) { return atomic_load(&writes); }
long holdfast_syncs(void) { return atomic_load(&syncs); }
void holdfast_trace(int fd) { trace = fd; }

/* --- Helpers ------------------------------------------------------------------------------------------------------ */

static int is_below(const char *path) {
    const char *name = strrchr(path, '/');
    if (!root_size || strncmp(path, root, root_size) || path[root_size] != '/') return 0;
    return strcmp(name, "/LOG") && strncmp(name, "/LOG.old", 8);
}

/* Whether a file descriptor leads below the directory, and by which name. The directory itself does too: it is synced. */
static int is_watched(int fd, char *path) {
    char link[64];
    ssize_t size;
    int kept = errno;
    if (!atomic_load(&is_armed)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, path, PATH_MAX - 1);
    errno = kept;
    if (size < 0) return 0;
    path[size] = 0;
    return is_below(path) || !strcmp(path, root);
}

static int is_watched_path(const char *path) { return atomic_load(&is_armed) && is_below(path); }

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* The next call: does not return if the process is to die before it. Says whether it is to die within. */
static int begin(void) {
    long number = atomic_fetch_add(&calls, 1) + 1;
    if (mode == KILL_BEFORE && number == first) die();
    return mode == KILL_WITHIN && number == first;
}

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : found.st_ino;
}

static uint64_t inode_at(const char *path) {
    struct stat found;
    return lstat(path, &found) ? 0 : found.st_ino;
}

static int exists(const char *path) {
    struct stat found;
    int kept = errno, missing = lstat(path, &found);
    errno = kept;
    return !missing;
}

static void put(const void *bytes, size_t size) {
    REAL(write, ssize_t, int, const void *, size_t);
    const char *at = bytes;
    while (size) {
        ssize_t done = real_write(trace, at, size);
        if (done <= 0) abort(); /* a trace with a hole would prove anything */
        at += done;
        size -= done;
    }
}

static void note(int kind, const char *path, const char *other, uint64_t inode, uint64_t number, const struct iovec *data,
                 int parts, size_t data_size) {
    struct record record = {kind, path ? strlen(path) : 0, other ? strlen(other) : 0, data_size, inode, number};
    int kept = errno;
    if (trace < 0) return;
    pthread_mutex_lock(&tracing);
    put(&record, sizeof record);
    if (path) put(path, record.path_size);
    if (other) put(other, record.other_size);
    for (int part = 0; part < parts && data_size; part++) {
        size_t size = data[part].iov_len < data_size ? data[part].iov_len : data_size;
        put(data[part].iov_base, size);
        data_size -= size;
    }
    pthread_mutex_unlock(&tracing);
    errno = kept;
}

static void note_name(int kind, const char *path, const char *other, uint64_t inode, uint64_t number) {
    note(kind, path, other, inode, number, NULL, 0, 0);
}

void holdfast_mark(const void *bytes, size_t size) {
    struct iovec data = {(void *)bytes, size};
    note(MARK, NULL, NULL, 0, 0, &data, 1, size);
}

/* --- Writes ------------------------------------------------------------------------------------------------------- */

/* The same for all: `offset` is -1 where the file's own position counts. */
static ssize_t write_parts(int fd, const struct iovec *parts, int count, off_t offset) {
    REAL(writev, ssize_t, int, const struct iovec *, int);
    REAL(pwritev, ssize_t, int, const struct iovec *, int, off_t);
    return offset < 0 ? real_writev(fd, parts, count) : real_pwritev(fd, parts, count, offset);
}

static ssize_t write_first_half(int fd, const struct iovec *parts, int count, off_t offset, size_t whole) {
    size_t half = whole / 2;
    struct iovec kept[IOV_MAX];
    int number = 0;
    for (; number < count && half; number++) {
        kept[number] = parts[number];
        if (kept[number].iov_len > half) kept[number].iov_len = half;
        half -= kept[number].iov_len;
    }
    return number ? write_parts(fd, kept, number, offset) : 0;
}

static ssize_t watched_write(int fd, const char *path, const struct iovec *parts, int count, off_t offset) {
    size_t whole = 0;
    ssize_t done;
    long number;
    for (int part = 0; part < count; part++) whole += parts[part].iov_len;
    if (begin()) {
        write_first_half(fd, parts, count, offset, whole);
        die();
    }
    number = atomic_fetch_add(&writes, 1) + 1;
    if (mode == FILL_DISK && number >= first && number <= last) {
        /* As a file system fills up: what still fits is written, and the next call is refused. */
        done = number == first ? write_first_half(fd, parts, count, offset, whole) : 0;
        if (done <= 0) {
            errno = ENOSPC;
            return -1;
        }
    } else
        done = write_parts(fd, parts, count, offset);
    if (done > 0) {
        off_t at = offset < 0 ? lseek(fd, 0, SEEK_CUR) - done : offset;
        note(WRITE, path, NULL, inode_of(fd), at, parts, count, done);
    }
    return done;
}

ssize_t write(int fd, const void *bytes, size_t size) {
    REAL(write, ssize_t, int, const void *, size_t);
    char path[PATH_MAX];
    struct iovec part = {(void *)bytes, size};
    return is_watched(fd, path) ? watched_write(fd, path, &part, 1, -1) : real_write(fd, bytes, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    return is_watched(fd, path) ? watched_write(fd, path, parts, count, -1) : write_parts(fd, parts, count, -1);
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) {
    char path[PATH_MAX];
    struct iovec part = {(void *)bytes, size};
    return is_watched(fd, path) ? watched_write(fd, path, &part, 1, offset) : write_parts(fd, &part, 1, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset) { return pwrite(fd, bytes, size, offset); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    char path[PATH_MAX];
    return is_watched(fd, path) ? watched_write(fd, path, parts, count, offset) : write_parts(fd, parts, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *p, int count, off64_t offset) { return pwritev(fd, p, count, offset); }

/* --- Syncs -------------------------------------------------------------------------------------------------------- */

/* Two marks: it holds what was noted before its beginning, and holds it for certain from its end on. */
static int watched_sync(int fd, const char *path, int (*sync)(int)) {
    uint64_t inode = inode_of(fd);
    int within = begin(), done;
    long number = atomic_fetch_add(&syncs, 1) + 1;
    note_name(SYNC_BEGINS, path, NULL, inode, number);
    if (mode == FAIL_SYNC && number >= first && number <= last) {
        note_name(SYNC_FAILS, path, NULL, inode, number);
        errno = EIO;
        return -1;
    }
    done = sync(fd);
    if (within) die();
    note_name(done ? SYNC_FAILS : SYNC_ENDS, path, NULL, inode, number);
    return done;
}

int fsync(int fd) {
    REAL(fsync, int, int);
    char path[PATH_MAX];
    return is_watched(fd, path) ? watched_sync(fd, path, real_fsync) : real_fsync(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync, int, int);
    char path[PATH_MAX];
    return is_watched(fd, path) ? watched_sync(fd, path, real_fdatasync) : real_fdatasync(fd);
}

/* Promises nothing about sizes and places of blocks: a point to die at, and no sync. */
int sync_file_range(int fd, off64_t offset, off64_t size, unsigned flags) {
    REAL(sync_file_range, int, int, off64_t, off64_t, unsigned);
    char path[PATH_MAX];
    int within = is_watched(fd, path) && begin();
    int done = real_sync_file_range(fd, offset, size, flags);
    if (within) die();
    return done;
}

/* --- Sizes -------------------------------------------------------------------------------------------------------- */

int ftruncate(int fd, off_t size) {
    REAL(ftruncate, int, int, off_t);
    char path[PATH_MAX];
    int is_ours = is_watched(fd, path), within = is_ours && begin();
    int done = real_ftruncate(fd, size);
    if (within) die();
    if (is_ours && !done) note_name(TRUNCATE, path, NULL, inode_of(fd), size);
    return done;
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int truncate(const char *path, off_t size) {
    REAL(truncate, int, const char *, off_t);
    int is_ours = is_watched_path(path), within = is_ours && begin();
    int done = real_truncate(path, size);
    if (within) die();
    if (is_ours && !done) note_name(TRUNCATE, path, NULL, inode_at(path), size);
    return done;
}

int truncate64(const char *path, off64_t size) { return truncate(path, size); }

int fallocate(int fd, int flags, off_t offset, off_t size) {
    REAL(fallocate, int, int, int, off_t, off_t);
    char path[PATH_MAX];
    struct stat found;
    int is_ours = is_watched(fd, path), within = is_ours && begin();
    int done = real_fallocate(fd, flags, offset, size);
    if (within) die();
    if (is_ours && !done && !fstat(fd, &found)) note_name(TRUNCATE, path, NULL, found.st_ino, found.st_size);
    return done;
}

int fallocate64(int fd, int flags, off64_t offset, off64_t size) { return fallocate(fd, flags, offset, size); }

/* --- Names -------------------------------------------------------------------------------------------------------- */

static int watched_open(int directory, const char *path, int flags, mode_t rights) {
    REAL(openat, int, int, const char *, int, ...);
    int is_ours = flags & (O_CREAT | O_TRUNC) && is_watched_path(path), is_new, within, fd;
    if (!is_ours) return real_openat(directory, path, flags, rights);
    is_new = !exists(path);
    if (!is_new && !(flags & O_TRUNC)) return real_openat(directory, path, flags, rights);
    within = begin();
    fd = real_openat(directory, path, flags, rights);
    if (within) die();
    if (fd >= 0) note_name(is_new ? CREATE : TRUNCATE, path, NULL, inode_of(fd), 0);
    return fd;
}

static mode_t rights_of(int flags, va_list more) {
    return flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) ? va_arg(more, unsigned) : 0;
}

#define OPEN(...)                                                                                                      \
    va_list more;                                                                                                      \
    mode_t rights;                                                                                                     \
    va_start(more, flags);                                                                                             \
    rights = rights_of(flags, more);                                                                                   \
    va_end(more);                                                                                                      \
    return watched_open(__VA_ARGS__, flags, rights)

int open(const char *path, int flags, ...) { OPEN(AT_FDCWD, path); }
int open64(const char *path, int flags, ...) { OPEN(AT_FDCWD, path); }
int openat(int directory, const char *path, int flags, ...) { OPEN(directory, path); }
int openat64(int directory, const char *path, int flags, ...) { OPEN(directory, path); }

int mkdir(const char *path, mode_t rights) {
    REAL(mkdir, int, const char *, mode_t);
    int is_ours = is_watched_path(path) && !exists(path), within = is_ours && begin();
    int done = real_mkdir(path, rights);
    if (within) die();
    if (is_ours && !done) note_name(MKDIR, path, NULL, inode_at(path), 0);
    return done;
}

int rename(const char *from, const char *to) {
    REAL(rename, int, const char *, const char *);
    int is_ours = is_watched_path(from) || is_watched_path(to), within = is_ours && begin();
    int done = real_rename(from, to);
    if (within) die();
    if (is_ours && !done) note_name(RENAME, from, to, inode_at(to), 0);
    return done;
}

int link(const char *from, const char *to) {
    REAL(link, int, const char *, const char *);
    int is_ours = is_watched_path(to), within = is_ours && begin();
    int done = real_link(from, to);
    if (within) die();
    if (is_ours && !done) note_name(LINK, from, to, inode_at(to), 0);
    return done;
}

static int watched_removal(const char *path, int (*remove)(const char *)) {
    int is_ours = is_watched_path(path) && exists(path), within = is_ours && begin();
    int done = remove(path);
    if (within) die();
    if (is_ours && !done) note_name(UNLINK, path, NULL, 0, 0);
    return done;
}

int unlink(const char *path) {
    REAL(unlink, int, const char *);
    return watched_removal(path, real_unlink);
}

int rmdir(const char *path) {
    REAL(rmdir, int, const char *);
    return watched_removal(path, real_rmdir);
}
