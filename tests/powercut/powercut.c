/* A disk whose power can be cut, that fails or is slow: an LD_PRELOAD library.
 *
 * Of every file under POWERCUT_ROOT it appends to POWERCUT_JOURNAL what was made, written and synced, one record per call
 * and in the order in which the calls took effect. `powercut/replay.rs` builds, for any prefix of the journal, a folder
 * that a disk may hold which lost its power there. The entries of a folder are read when it is synced and after each call
 * that makes, renames or removes one; a rename past libc is seen at the next of these.
 *
 * It also lets calls fail or take long:
 *   POWERCUT_FAIL=CALL:N:ERRNO        CALL is write or fsync; the N-th such call under the root and all later ones
 *   POWERCUT_FAIL_WHILE=FILE:ERRNO    while FILE exists; it says "CALL PART": such calls on files with PART in their path
 *   POWERCUT_SLOW_WHILE=FILE:MICROS   syncs take so much longer while FILE exists
 *
 * It aborts on ways of writing that it does not follow: shared writable mappings, truncate by path, fallocate, sendfile,
 * copy_file_range, splice, pwritev2, fopen for writing, hard links and files without a name (`intruder.c` tries each). It
 * follows no process beside the one it is loaded into.
 *
 * Record: u8 kind, u64 inode, u64 number, u32 length of path, u32 length of data (little-endian), path, data. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, TRUNCATE = 2, SYNC = 3, SYNC_FOLDER = 4, CREATE = 5, ENTRIES = 6 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char root[4096], while_path[4096], slow_path[4096];
static size_t root_length;
static int journal = -1, fail_call, fail_errno, while_errno;
static long fail_from, slow_micros, counted[3];

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

static void refuse(const char *what) {
    dprintf(2, "powercut: %s is not followed\n", what);
    abort();
}

/* "A:B" into path A and the number B. */
static long pair(const char *text, char *path) {
    const char *colon = strrchr(text, ':');
    if (!colon || colon - text >= 4096) refuse("this setting");
    memcpy(path, text, colon - text);
    path[colon - text] = 0;
    return strtol(colon + 1, NULL, 10);
}

static void begin(void) {
    const char *text = getenv("POWERCUT_ROOT");
    if (!text || !realpath(text, root)) return;
    root_length = strlen(root);
    if ((text = getenv("POWERCUT_JOURNAL"))) {
        journal = syscall(SYS_openat, AT_FDCWD, text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (journal < 0) refuse("this journal");
    }
    if ((text = getenv("POWERCUT_FAIL"))) {
        char call[32];
        if (sscanf(text, "%31[a-z]:%ld:%d", call, &fail_from, &fail_errno) != 3) refuse("this failure");
        fail_call = strcmp(call, "fsync") ? 1 : 2;
    }
    if ((text = getenv("POWERCUT_FAIL_WHILE"))) while_errno = (int)pair(text, while_path);
    if ((text = getenv("POWERCUT_SLOW_WHILE"))) slow_micros = pair(text, slow_path);
}

/* The file of a descriptor, if it lies under the root. */
static int ours(int fd, struct stat *is, char *path) {
    char link[64];
    pthread_once(&once, begin);
    if (!root_length || fd < 0 || fd == journal) return 0;
    if (fstat(fd, is) || !(S_ISREG(is->st_mode) || S_ISDIR(is->st_mode))) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, 4095);
    if (length <= (ssize_t)root_length - 1 || length < 0) return 0;
    path[length] = 0;
    return !strncmp(path, root, root_length) && (!path[root_length] || path[root_length] == '/');
}

static void put(const void *bytes, size_t length) {
    for (const char *at = bytes; length;) {
        ssize_t done = syscall(SYS_write, journal, at, length);
        if (done <= 0) refuse("a journal that cannot be written");
        at += done;
        length -= done;
    }
}

static void record(int kind, uint64_t inode, uint64_t number, const char *path, const void *data, size_t length) {
    if (journal < 0) return;
    const char *below = path + root_length + (path[root_length] == '/');
    uint32_t path_length = strlen(below), data_length = length;
    char head[25];
    head[0] = kind;
    memcpy(head + 1, &inode, 8);
    memcpy(head + 9, &number, 8);
    memcpy(head + 17, &path_length, 4);
    memcpy(head + 21, &data_length, 4);
    put(head, sizeof head);
    put(below, path_length);
    if (length) put(data, length);
}

/* Does the file of wishes ask for the failure of this call? */
static int wished(int call, const char *path) {
    char wish[256];
    int wishes = while_errno ? (int)syscall(SYS_openat, AT_FDCWD, while_path, O_RDONLY | O_CLOEXEC, 0) : -1;
    if (wishes < 0) return 0;
    long got = syscall(SYS_read, wishes, wish, sizeof wish - 1);
    syscall(SYS_close, wishes);
    if (got <= 0) return 0;
    wish[got] = 0;
    char *part = strchr(wish, ' ');
    if (!part) return 0;
    *part++ = 0;
    return !strcmp(wish, call == 2 ? "fsync" : "write") && strstr(path, part);
}

/* The errno with which this call fails, or 0. Called with the lock held. */
static int fails(int call, const char *path) {
    long number = ++counted[call];
    if (fail_call == call && number >= fail_from) return fail_errno;
    return wished(call, path) ? while_errno : 0;
}

static ssize_t write_at(int fd, const struct iovec *parts, int count, off_t at, int positioned) {
    struct stat is;
    char path[4096];
    if (!ours(fd, &is, path) || !S_ISREG(is.st_mode)) {
        return positioned ? REAL(pwritev64)(fd, parts, count, at) : REAL(writev)(fd, parts, count);
    }
    pthread_mutex_lock(&lock);
    int error = fails(1, path);
    ssize_t done = -1;
    if (!error && fstat(fd, &is) == 0) {
        if (!positioned) at = fcntl(fd, F_GETFL) & O_APPEND ? is.st_size : lseek(fd, 0, SEEK_CUR);
        done = positioned ? REAL(pwritev64)(fd, parts, count, at) : REAL(writev)(fd, parts, count);
        error = done < 0 ? errno : 0;
        size_t left = done > 0 ? done : 0;
        for (int part = 0; left; part++) {
            size_t length = parts[part].iov_len < left ? parts[part].iov_len : left;
            record(WRITE, is.st_ino, at, path, parts[part].iov_base, length);
            at += length;
            left -= length;
        }
    }
    pthread_mutex_unlock(&lock);
    if (done < 0) errno = error;
    return done;
}

ssize_t write(int fd, const void *bytes, size_t length) {
    return write_at(fd, &(struct iovec){(void *)bytes, length}, 1, 0, 0);
}
ssize_t writev(int fd, const struct iovec *parts, int count) { return write_at(fd, parts, count, 0, 0); }
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) {
    return write_at(fd, &(struct iovec){(void *)bytes, length}, 1, at, 1);
}
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) {
    return write_at(fd, &(struct iovec){(void *)bytes, length}, 1, at, 1);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { return write_at(fd, parts, count, at, 1); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    return write_at(fd, parts, count, at, 1);
}

static int truncate_to(int fd, off64_t length) {
    struct stat is;
    char path[4096];
    if (!ours(fd, &is, path)) return REAL(ftruncate64)(fd, length);
    pthread_mutex_lock(&lock);
    int error = fails(1, path), done = -1;
    if (!error) {
        done = REAL(ftruncate64)(fd, length);
        error = errno;
        if (!done) record(TRUNCATE, is.st_ino, length, path, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    if (done) errno = error;
    return done;
}
int ftruncate(int fd, off_t length) { return truncate_to(fd, length); }
int ftruncate64(int fd, off64_t length) { return truncate_to(fd, length); }

/* The entries of a folder: u64 inode, u8 folder, u16 length of name, name. */
static size_t entries(const char *path, char **into) {
    size_t length = 0, room = 0;
    struct dirent *entry;
    DIR *folder = opendir(path);
    if (!folder) refuse("a folder that cannot be read");
    while ((entry = readdir(folder))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        uint16_t name = strlen(entry->d_name);
        if (length + 11 + name > room) {
            room = 2 * room + 4096;
            if (!(*into = realloc(*into, room))) refuse("a folder of this size");
        }
        uint64_t inode = entry->d_ino;
        memcpy(*into + length, &inode, 8);
        (*into)[length + 8] = entry->d_type == DT_DIR;
        memcpy(*into + length + 9, &name, 2);
        memcpy(*into + length + 11, entry->d_name, name);
        length += 11 + name;
    }
    closedir(folder);
    return length;
}

static void entries_of(int kind, const char *path) {
    struct stat is;
    char *names = NULL;
    if (journal < 0 || stat(path, &is)) return;
    size_t length = entries(path, &names);
    record(kind, is.st_ino, 0, path, names, length);
    free(names);
}

static int synced(int fd, int (*sync)(int)) {
    struct stat is;
    char path[4096];
    if (!ours(fd, &is, path)) return sync(fd);
    if (slow_micros && !syscall(SYS_faccessat, AT_FDCWD, slow_path, F_OK)) usleep(slow_micros);
    pthread_mutex_lock(&lock);
    int error = fails(2, path);
    /* The real disk need not be waited for when the journal is what counts. */
    if (!error && journal >= 0) {
        if (S_ISDIR(is.st_mode)) entries_of(SYNC_FOLDER, path);
        else record(SYNC, is.st_ino, is.st_size, path, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    if (error) {
        errno = error;
        return -1;
    }
    return journal < 0 ? sync(fd) : 0;
}
int fsync(int fd) { return synced(fd, REAL(fsync)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }

/* The whole path of the folder that a path lies in, if that lies under the root. */
static int above(int folder, const char *path, char *whole) {
    char above[4096], link[64];
    const char *slash = strrchr(path, '/');
    if (folder != AT_FDCWD && path[0] != '/') {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, above, 4000);
        if (length <= 0) return 0;
        above[length] = 0;
        if (slash) snprintf(above + length, sizeof above - length, "/%.*s", (int)(slash - path), path);
    } else {
        snprintf(above, sizeof above, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    }
    if (!realpath(above, whole) || strncmp(whole, root, root_length)) return 0;
    return !whole[root_length] || whole[root_length] == '/';
}

/* Notes the folder of a path that was made, renamed or removed. Called with the lock held. */
static void changed(int folder, const char *path) {
    char whole[4096];
    if (above(folder, path, whole)) entries_of(ENTRIES, whole);
}

/* Does a path lie under the root of a journal? */
static int below(int folder, const char *path) {
    char whole[4096];
    pthread_once(&once, begin);
    return journal >= 0 && above(folder, path, whole);
}

/* Opens; notes a file that is made or emptied by it. */
static int opened(int folder, const char *path, int flags, mode_t mode) {
    struct stat is;
    char whole[4096];
    pthread_once(&once, begin);
    int writes = journal >= 0 && (flags & (O_CREAT | O_TRUNC | __O_TMPFILE));
    if (!writes) return syscall(SYS_openat, folder, path, flags | O_LARGEFILE, mode);
    pthread_mutex_lock(&lock);
    int there = !syscall(SYS_faccessat, folder, path, F_OK);
    int fd = syscall(SYS_openat, folder, path, flags | O_LARGEFILE, mode), error = errno;
    if (fd >= 0 && ours(fd, &is, whole)) {
        if ((flags & __O_TMPFILE) == __O_TMPFILE) refuse("a file without a name");
        if (!there) {
            record(CREATE, is.st_ino, 0, whole, NULL, 0);
            changed(AT_FDCWD, whole);
        } else if (flags & O_TRUNC) {
            record(TRUNCATE, is.st_ino, 0, whole, NULL, 0);
        }
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return fd;
}

#define MODE(flags, mode)                                                                                              \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                                           \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode = va_arg(more, int);                                                                                      \
        va_end(more);                                                                                                  \
    }

int open(const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(folder, path, flags, mode);
}
int creat(const char *path, mode_t mode) { return open(path, O_WRONLY | O_CREAT | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_WRONLY | O_CREAT | O_TRUNC, mode); }

/* What changes names: done under the lock, then the folders are read. */
#define NAMES(call, notes)                                                                                             \
    pthread_once(&once, begin);                                                                                        \
    if (journal < 0) return call;                                                                                      \
    pthread_mutex_lock(&lock);                                                                                         \
    int done = call, error = errno;                                                                                    \
    if (!done) {                                                                                                       \
        notes;                                                                                                         \
    }                                                                                                                  \
    pthread_mutex_unlock(&lock);                                                                                       \
    errno = error;                                                                                                     \
    return done;

/* An empty folder under an inode that may have been another's. */
static void made(int folder, const char *path) {
    struct stat is;
    char whole[4096];
    int fd = syscall(SYS_openat, folder, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) return;
    if (ours(fd, &is, whole)) record(CREATE, is.st_ino, 1, whole, NULL, 0);
    syscall(SYS_close, fd);
    changed(folder, path);
}

int mkdir(const char *path, mode_t mode) { NAMES((int)syscall(SYS_mkdirat, AT_FDCWD, path, mode), made(AT_FDCWD, path)) }
int mkdirat(int folder, const char *path, mode_t mode) {
    NAMES((int)syscall(SYS_mkdirat, folder, path, mode), made(folder, path))
}
int rename(const char *from, const char *to) {
    NAMES((int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0), changed(AT_FDCWD, from); changed(AT_FDCWD, to))
}
int renameat(int one, const char *from, int other, const char *to) {
    NAMES((int)syscall(SYS_renameat2, one, from, other, to, 0), changed(one, from); changed(other, to))
}
int renameat2(int one, const char *from, int other, const char *to, unsigned flags) {
    NAMES((int)syscall(SYS_renameat2, one, from, other, to, flags), changed(one, from); changed(other, to))
}
int unlink(const char *path) { NAMES((int)syscall(SYS_unlinkat, AT_FDCWD, path, 0), changed(AT_FDCWD, path)) }
int rmdir(const char *path) { NAMES((int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR), changed(AT_FDCWD, path)) }
int unlinkat(int folder, const char *path, int flags) {
    NAMES((int)syscall(SYS_unlinkat, folder, path, flags), changed(folder, path))
}
int linkat(int one, const char *from, int other, const char *to, int flags) {
    if (below(other, to)) refuse("a hard link");
    return syscall(SYS_linkat, one, from, other, to, flags);
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

/* What is not followed. */
static void not_ours(int fd, const char *what) {
    struct stat is;
    char path[4096];
    if (ours(fd, &is, path)) refuse(what);
}
void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    if ((flags & MAP_SHARED) && (protection & PROT_WRITE) && fd >= 0) not_ours(fd, "a shared writable mapping");
    return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t length, int protection, int flags, int fd, off64_t offset) {
    return mmap(at, length, protection, flags, fd, offset);
}
int fallocate(int fd, int mode, off_t at, off_t length) {
    not_ours(fd, "fallocate");
    return REAL(fallocate)(fd, mode, at, length);
}
int fallocate64(int fd, int mode, off64_t at, off64_t length) {
    not_ours(fd, "fallocate64");
    return REAL(fallocate64)(fd, mode, at, length);
}
int posix_fallocate64(int fd, off64_t at, off64_t length) {
    not_ours(fd, "posix_fallocate64");
    return REAL(posix_fallocate64)(fd, at, length);
}
int posix_fallocate(int fd, off_t at, off_t length) {
    not_ours(fd, "posix_fallocate");
    return REAL(posix_fallocate)(fd, at, length);
}
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *there, size_t length, unsigned flags) {
    not_ours(to, "copy_file_range");
    return REAL(copy_file_range)(from, at, to, there, length, flags);
}
ssize_t sendfile(int to, int from, off_t *at, size_t length) {
    not_ours(to, "sendfile");
    return ((ssize_t(*)(int, int, off_t *, size_t))real("sendfile"))(to, from, at, length);
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t length) {
    not_ours(to, "sendfile64");
    return ((ssize_t(*)(int, int, off64_t *, size_t))real("sendfile64"))(to, from, at, length);
}
ssize_t splice(int from, off64_t *at, int to, off64_t *there, size_t length, unsigned flags) {
    not_ours(to, "splice");
    return REAL(splice)(from, at, to, there, length, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    not_ours(fd, "pwritev64v2");
    return REAL(pwritev64v2)(fd, parts, count, at, flags);
}
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    not_ours(fd, "pwritev2");
    return REAL(pwritev2)(fd, parts, count, at, flags);
}
int truncate(const char *path, off_t length) {
    if (below(AT_FDCWD, path)) refuse("truncate");
    return syscall(SYS_truncate, path, length);
}
int truncate64(const char *path, off64_t length) {
    if (below(AT_FDCWD, path)) refuse("truncate64");
    return syscall(SYS_truncate, path, length);
}
/* What it writes later passes by this library. */
FILE *fopen(const char *path, const char *mode) {
    if (strpbrk(mode, "wa+") && below(AT_FDCWD, path)) refuse("fopen for writing");
    return REAL(fopen)(path, mode);
}
FILE *fopen64(const char *path, const char *mode) {
    if (strpbrk(mode, "wa+") && below(AT_FDCWD, path)) refuse("fopen64 for writing");
    return REAL(fopen64)(path, mode);
}
