/* A disk whose power can be cut: an LD_PRELOAD library.
 *
 * Of every file under POWERCUT_ROOT it appends to POWERCUT_JOURNAL what was written and when it was synced, one record
 * per call and in the order in which the calls took effect. `powercut/replay.rs` builds, for any prefix of the journal, the
 * folder as a disk may hold it that lost its power there: bytes of files as of their last fsync or fdatasync, entries of
 * folders as of their last fsync. The entries are read when the folder is synced, so renames and unlinks need no hook of
 * their own, whichever way they are made.
 *
 * It also lets calls fail or take long:
 *   POWERCUT_FAIL=CALL:N:ERRNO        CALL is write or fsync; the N-th such call under the root and all later ones
 *   POWERCUT_FAIL_WHILE=FILE:ERRNO    all writes and syncs while FILE exists
 *   POWERCUT_SLOW_WHILE=FILE:MICROS   syncs take so much longer while FILE exists
 *
 * It aborts on ways of writing that it does not follow: shared writable mappings, fallocate, sendfile, copy_file_range,
 * splice, pwritev2 and hard links. It follows no process beside the one it is loaded into.
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

enum { WRITE = 1, TRUNCATE = 2, SYNC = 3, SYNC_FOLDER = 4, CREATE = 5 };

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
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, 4095);
    if (length <= (ssize_t)root_length - 1 || length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, root, root_length) || (path[root_length] && path[root_length] != '/')) return 0;
    return fstat(fd, is) == 0 && (S_ISREG(is->st_mode) || S_ISDIR(is->st_mode));
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

/* The errno with which this call fails, or 0. Called with the lock held. */
static int fails(int call) {
    long number = ++counted[call];
    if (fail_call == call && number >= fail_from) return fail_errno;
    if (while_errno && !syscall(SYS_faccessat, AT_FDCWD, while_path, F_OK)) return while_errno;
    return 0;
}

static ssize_t write_at(int fd, const struct iovec *parts, int count, off_t at, int positioned) {
    struct stat is;
    char path[4096];
    if (!ours(fd, &is, path) || !S_ISREG(is.st_mode)) {
        return positioned ? REAL(pwritev64)(fd, parts, count, at) : REAL(writev)(fd, parts, count);
    }
    pthread_mutex_lock(&lock);
    int error = fails(1);
    ssize_t done = -1;
    if (!error && fstat(fd, &is) == 0) {
        if (!positioned) at = fcntl(fd, F_GETFL) & O_APPEND ? is.st_size : lseek(fd, 0, SEEK_CUR);
        done = positioned ? REAL(pwritev64)(fd, parts, count, at) : REAL(writev)(fd, parts, count);
        error = done < 0 ? errno : 0;
        /* An empty file may be a new one under an old inode. */
        if (done > 0 && is.st_size == 0) record(CREATE, is.st_ino, 0, path, NULL, 0);
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
    int error = fails(1), done = -1;
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

static int synced(int fd, int (*sync)(int)) {
    struct stat is;
    char path[4096], *names = NULL;
    if (!ours(fd, &is, path)) return sync(fd);
    if (slow_micros && !syscall(SYS_faccessat, AT_FDCWD, slow_path, F_OK)) usleep(slow_micros);
    pthread_mutex_lock(&lock);
    int error = fails(2), done = -1;
    if (!error) {
        /* The real disk need not be waited for: what counts is the journal. */
        done = journal < 0 ? sync(fd) : 0;
        error = errno;
        if (!done && S_ISDIR(is.st_mode)) {
            size_t length = entries(path, &names);
            record(SYNC_FOLDER, is.st_ino, 0, path, names, length);
            free(names);
        } else if (!done) {
            record(SYNC, is.st_ino, is.st_size, path, NULL, 0);
        }
    }
    pthread_mutex_unlock(&lock);
    if (done) errno = error;
    return done;
}
int fsync(int fd) { return synced(fd, REAL(fsync)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }

/* A file that is emptied by its opening. */
static int opened(int fd, int flags) {
    struct stat is;
    char path[4096];
    int error = errno;
    if (fd >= 0 && (flags & O_TRUNC) && ours(fd, &is, path)) {
        pthread_mutex_lock(&lock);
        record(TRUNCATE, is.st_ino, 0, path, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
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
    return opened(REAL(open)(path, flags, mode), flags);
}
int open64(const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(REAL(open64)(path, flags, mode), flags);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(REAL(openat)(folder, path, flags, mode), flags);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(REAL(openat64)(folder, path, flags, mode), flags);
}
int creat(const char *path, mode_t mode) { return open(path, O_WRONLY | O_CREAT | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_WRONLY | O_CREAT | O_TRUNC, mode); }

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
int posix_fallocate(int fd, off_t at, off_t length) {
    not_ours(fd, "posix_fallocate");
    return REAL(posix_fallocate)(fd, at, length);
}
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *there, size_t length, unsigned flags) {
    not_ours(to, "copy_file_range");
    return REAL(copy_file_range)(from, at, to, there, length, flags);
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
