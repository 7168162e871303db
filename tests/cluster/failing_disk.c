/* Makes the disk of one node fail while its file of wishes ($FAIL_FILE) says so: "sync" fails fsync and fdatasync,
   "write" fails writes, both of files of the Raft log; "state" fails writes of files of the state. With EIO. Preloaded
   into nodes by failing_disk.rs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int fails(int fd, const char *what) {
    const char *path = getenv("FAIL_FILE");
    char wish[16] = {0}, link[64], file[4096] = {0};
    if (!path) return 0;
    int wishes = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (wishes < 0) return 0;
    long got = syscall(SYS_read, wishes, wish, sizeof wish - 1);
    syscall(SYS_close, wishes);
    if (got <= 0) return 0;
    int state = !strncmp(wish, "state", 5) && !strcmp(what, "write");
    if (!state && strncmp(wish, what, strlen(what))) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, file, sizeof file - 1) <= 0) return 0;
    return strstr(file, state ? "/data/state/" : "/data/log/") != NULL;
}

int fdatasync(int fd) {
    if (fails(fd, "sync")) { errno = EIO; return -1; }
    return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd) {
    if (fails(fd, "sync")) { errno = EIO; return -1; }
    return (int)syscall(SYS_fsync, fd);
}

ssize_t write(int fd, const void *bytes, size_t count) {
    if (fails(fd, "write")) { errno = EIO; return -1; }
    return syscall(SYS_write, fd, bytes, count);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (fails(fd, "write")) { errno = EIO; return -1; }
    return syscall(SYS_writev, fd, parts, count);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    if (fails(fd, "write")) { errno = EIO; return -1; }
    return syscall(SYS_pwrite64, fd, bytes, count, at);
}
