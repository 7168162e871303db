/* Writes below a folder in the way that it is told: FOLDER CALL. For the test that the library of `powercut.c` follows a way
 * or ends the process. Exit 0: the call went through; 1: it did not; 2: no such call is known. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

static int is(const char *call, const char *name) { return !strcmp(call, name); }

int main(int count, char **words) {
    if (count != 3 || chdir(words[1])) return 2;
    const char *call = words[2];
    struct iovec part = {"abc", 3};
    int fd = open("a", O_RDWR | O_CREAT, 0600), from = open("/proc/self/exe", O_RDONLY), pipes[2];
    off64_t zero = 0;
    if (fd < 0 || from < 0 || pipe(pipes) || write(pipes[1], "abc", 3) != 3) return 1;
    if (is(call, "write")) return write(fd, "abc", 3) != 3;
    if (is(call, "writev")) return writev(fd, &part, 1) != 3;
    if (is(call, "pwrite")) return pwrite(fd, "abc", 3, 0) != 3;
    if (is(call, "pwrite64")) return pwrite64(fd, "abc", 3, 0) != 3;
    if (is(call, "pwritev")) return pwritev(fd, &part, 1, 0) != 3;
    if (is(call, "pwritev64")) return pwritev64(fd, &part, 1, 0) != 3;
    if (is(call, "ftruncate")) return ftruncate(fd, 7) != 0;
    if (is(call, "ftruncate64")) return ftruncate64(fd, 7) != 0;
    if (is(call, "pwritev2")) return pwritev2(fd, &part, 1, 0, 0) != 3;
    if (is(call, "pwritev64v2")) return pwritev64v2(fd, &part, 1, 0, 0) != 3;
    if (is(call, "truncate")) return truncate("a", 7) != 0;
    if (is(call, "truncate64")) return truncate64("a", 7) != 0;
    if (is(call, "fallocate")) return fallocate(fd, 0, 0, 7) != 0;
    if (is(call, "fallocate64")) return fallocate64(fd, 0, 0, 7) != 0;
    if (is(call, "posix_fallocate")) return posix_fallocate(fd, 0, 7) != 0;
    if (is(call, "posix_fallocate64")) return posix_fallocate64(fd, 0, 7) != 0;
    if (is(call, "copy_file_range")) return copy_file_range(from, &zero, fd, NULL, 7, 0) < 0;
    if (is(call, "sendfile")) return sendfile(fd, from, NULL, 7) < 0;
    if (is(call, "sendfile64")) return sendfile64(fd, from, NULL, 7) < 0;
    if (is(call, "splice")) return splice(pipes[0], NULL, fd, NULL, 3, 0) < 0;
    if (is(call, "mmap")) return mmap(NULL, 7, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED;
    if (is(call, "link")) return link("a", "b") != 0;
    if (is(call, "fopen")) return fopen("a", "r+") == NULL;
    if (is(call, "fopen64")) return fopen64("a", "w") == NULL;
    if (is(call, "O_TMPFILE")) return open(".", O_TMPFILE | O_RDWR, 0600) < 0;
    return 2;
}
