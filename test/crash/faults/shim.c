/*
 * Calls that fail when a test wants them to. Preloaded into a program, it counts the calls below XCE_FAULT_BELOW (a
 * directory, or several with colons between), and the one that was chosen fails. It stands in front of the functions
 * of libc that Node calls: libuv reaches statx(2) and close(2) by syscall(), and reads directories by scandir(3).
 *
 * Chosen by the environment when the program starts, or by xce_fault_arm() while it runs:
 *   XCE_FAULT_AT      which call, from 1; 0: none, they are only counted
 *   XCE_FAULT_CALLS   names with commas around and between (",fsync,lock,") that count; empty: all
 *   XCE_FAULT_MODE    once; always: that one and all behind it; after: it is done, and the answer is lost;
 *                     short: a write takes half of its bytes
 *   XCE_FAULT_ERRNO   number of the errno
 *   XCE_FAULT_TRACE   file to which a line "NUMBER NAME PATH" is added for each call that counts
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum mode { ONCE, ALWAYS, AFTER, SHORT };
enum fate { GO, FAIL, FAIL_AFTER, HALF };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char below[4096], calls[256], trace[PATH_MAX];
static int at, number, fault_errno = EIO;
static enum mode mode = ONCE;
static long (*real_syscall)(long, ...);

/* Only of use with what this file itself makes sure of: libc has every one of them. */
#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) {
        fprintf(stderr, "fault shim: no %s\n", name);
        abort();
    }
    return found;
}

static enum mode mode_of(const char *text)
{
    return !strcmp(text, "always") ? ALWAYS : !strcmp(text, "after") ? AFTER : !strcmp(text, "short") ? SHORT : ONCE;
}

/* Begins to count anew. */
void xce_fault_arm(int which, const char *names, const char *how, int error)
{
    pthread_mutex_lock(&mutex);
    number = 0;
    at = which;
    mode = mode_of(how);
    fault_errno = error;
    snprintf(calls, sizeof calls, "%s", names);
    pthread_mutex_unlock(&mutex);
}

/* How many calls there were since. */
int xce_fault_count(void)
{
    pthread_mutex_lock(&mutex);
    int count = number;
    pthread_mutex_unlock(&mutex);
    return count;
}

void xce_fault_below(const char *directories)
{
    pthread_mutex_lock(&mutex);
    snprintf(below, sizeof below, "%s", directories);
    pthread_mutex_unlock(&mutex);
}

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    return value == NULL ? "" : value;
}

__attribute__((constructor)) static void start(void)
{
    real_syscall = (long (*)(long, ...))real("syscall");
    snprintf(below, sizeof below, "%s", setting("XCE_FAULT_BELOW"));
    snprintf(calls, sizeof calls, "%s", setting("XCE_FAULT_CALLS"));
    snprintf(trace, sizeof trace, "%s", setting("XCE_FAULT_TRACE"));
    at = atoi(setting("XCE_FAULT_AT"));
    mode = mode_of(setting("XCE_FAULT_MODE"));
    if (*setting("XCE_FAULT_ERRNO"))
        fault_errno = atoi(setting("XCE_FAULT_ERRNO"));
}

static int is_below(const char *path)
{
    for (const char *top = below; *top;) {
        size_t length = strcspn(top, ":");
        if (length > 0 && !strncmp(path, top, length) && (path[length] == '/' || path[length] == '\0'))
            return 1;
        top += length + (top[length] == ':');
    }
    return 0;
}

static int counts(const char *name)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, ",%s,", name);
    return calls[0] == '\0' || strstr(calls, wanted) != NULL;
}

static enum fate judge(const char *name, const char *path)
{
    enum fate fate = GO;
    int before = errno;
    pthread_mutex_lock(&mutex);
    if (is_below(path) && counts(name)) {
        number++;
        if (trace[0]) {
            char line[PATH_MAX + 64];
            int length = snprintf(line, sizeof line, "%d %s %s\n", number, name, path);
            int fd = (int)real_syscall(SYS_openat, AT_FDCWD, trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
            real_syscall(SYS_write, fd, line, (size_t)length);
            real_syscall(SYS_close, fd);
        }
        if (at != 0 && (number == at || (number > at && mode == ALWAYS)))
            fate = mode == AFTER ? FAIL_AFTER : mode == SHORT ? HALF : FAIL;
    }
    pthread_mutex_unlock(&mutex);
    errno = before;
    return fate;
}

static enum fate judge_fd(const char *name, int fd)
{
    char link[64], path[PATH_MAX];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length < 0)
        return GO;
    path[length] = '\0';
    return judge(name, path);
}

/* Does a call, or says that it failed, or both. */
#define DO(judged, call)            \
    do {                            \
        enum fate chosen = (judged); \
        if (chosen == FAIL) {       \
            errno = fault_errno;    \
            return -1;              \
        }                           \
        __typeof__(call) result = (call); \
        if (chosen == FAIL_AFTER) { \
            errno = fault_errno;    \
            return -1;              \
        }                           \
        return result;              \
    } while (0)

static int open_in(const char *path, int flags, mode_t bits)
{
    enum fate fate = judge("open", path);
    /* An open that was answered with an error has no descriptor, whatever became of the file. */
    if (fate != GO && fate != HALF) {
        if (fate == FAIL_AFTER) {
            int fd = (int)real_syscall(SYS_openat, AT_FDCWD, path, flags, bits);
            if (fd >= 0)
                real_syscall(SYS_close, fd);
        }
        errno = fault_errno;
        return -1;
    }
    return (int)real_syscall(SYS_openat, AT_FDCWD, path, flags, bits);
}

#define OPEN(name)                                                    \
    int name(const char *path, int flags, ...)                        \
    {                                                                 \
        va_list list;                                                 \
        va_start(list, flags);                                        \
        mode_t bits = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
        va_end(list);                                                 \
        return open_in(path, flags, bits);                            \
    }
OPEN(open)
OPEN(open64)

ssize_t read(int fd, void *into, size_t length)
{
    DO(judge_fd("read", fd), REAL(read)(fd, into, length));
}

ssize_t pread64(int fd, void *into, size_t length, off64_t offset)
{
    DO(judge_fd("read", fd), REAL(pread64)(fd, into, length, offset));
}

ssize_t write(int fd, const void *from, size_t length)
{
    enum fate fate = judge_fd("write", fd);
    DO(fate, REAL(write)(fd, from, fate == HALF ? (length + 1) / 2 : length));
}

ssize_t pwrite64(int fd, const void *from, size_t length, off64_t offset)
{
    enum fate fate = judge_fd("write", fd);
    DO(fate, REAL(pwrite64)(fd, from, fate == HALF ? (length + 1) / 2 : length, offset));
}

int fsync(int fd)
{
    DO(judge_fd("fsync", fd), REAL(fsync)(fd));
}

int fdatasync(int fd)
{
    DO(judge_fd("fsync", fd), REAL(fdatasync)(fd));
}

int ftruncate64(int fd, off64_t length)
{
    DO(judge_fd("truncate", fd), REAL(ftruncate64)(fd, length));
}

int link(const char *from, const char *to)
{
    DO(judge("link", to), REAL(link)(from, to));
}

int rename(const char *from, const char *to)
{
    DO(judge("rename", to), REAL(rename)(from, to));
}

int unlink(const char *path)
{
    DO(judge("unlink", path), REAL(unlink)(path));
}

int mkdir(const char *path, mode_t bits)
{
    DO(judge("mkdir", path), REAL(mkdir)(path, bits));
}

int scandir64(const char *path, struct dirent64 ***names, int (*filter)(const struct dirent64 *),
              int (*compare)(const struct dirent64 **, const struct dirent64 **))
{
    enum fate fate = judge("list", path);
    if (fate == FAIL || fate == FAIL_AFTER) {
        errno = fault_errno;
        return -1;
    }
    return REAL(scandir64)(path, names, filter, compare);
}

/* Linux gives the descriptor back, whatever close(2) answers. */
int close(int fd)
{
    enum fate fate = judge_fd("close", fd);
    int result = (int)real_syscall(SYS_close, fd);
    if (fate != FAIL && fate != FAIL_AFTER)
        return result;
    errno = fault_errno;
    return -1;
}

static int fcntl_in(int fd, int command, void *argument)
{
    enum fate fate = GO;
    if (command == F_OFD_SETLK || command == F_OFD_SETLKW)
        fate = judge_fd(((struct flock *)argument)->l_type == F_UNLCK ? "unlock" : "lock", fd);
    DO(fate, (int)real_syscall(SYS_fcntl, fd, command, argument));
}

#define FCNTL(name)                            \
    int name(int fd, int command, ...)         \
    {                                          \
        va_list list;                          \
        va_start(list, command);               \
        void *argument = va_arg(list, void *); \
        va_end(list);                          \
        return fcntl_in(fd, command, argument); \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

/* How libuv calls statx(2), and closes what fs.close() is given. */
long syscall(long which, ...)
{
    va_list list;
    long a[6];
    va_start(list, which);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (which == SYS_close)
        return close((int)a[0]);
    enum fate fate = GO;
    if (which == SYS_statx) {
        const char *path = (const char *)a[1];
        fate = path != NULL && path[0] == '/' ? judge("stat", path) : judge_fd("stat", (int)a[0]);
    }
    DO(fate, real_syscall(which, a[0], a[1], a[2], a[3], a[4], a[5]));
}
