/*
 * Stops a program just before it writes to a file of a lease log, once, when /etc/stop-at-write is there. The file is
 * renamed to /etc/stopped and holds the process id then. Loaded by /etc/ld.so.preload.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static void look(int fd)
{
	char name[64], path[4096];
	ssize_t length;
	FILE *file;

	if (access("/etc/stop-at-write", F_OK) != 0)
		return;
	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	length = readlink(name, path, sizeof path - 1);
	if (length <= 0)
		return;
	path[length] = 0;
	if (strstr(path, "/leases.wal.") == NULL)
		return;
	file = fopen("/etc/stop-at-write", "we");
	if (file == NULL)
		return;
	fprintf(file, "%d\n", getpid());
	fclose(file);
	if (rename("/etc/stop-at-write", "/etc/stopped") == 0)
		raise(SIGSTOP); /* by the thread itself: kill(2) may stop another one first, and this one goes on */
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
	look(fd);
	return REAL(pwrite)(fd, bytes, count, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset)
{
	look(fd);
	return REAL(pwrite64)(fd, bytes, count, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
	look(fd);
	return REAL(pwritev)(fd, parts, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset)
{
	look(fd);
	return REAL(pwritev64)(fd, parts, count, offset);
}

ssize_t write(int fd, const void *bytes, size_t count)
{
	look(fd);
	return REAL(write)(fd, bytes, count);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
	look(fd);
	return REAL(writev)(fd, parts, count);
}
