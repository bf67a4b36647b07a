/*
 * A file system that answers nothing, as storage whose server is gone: silent-fs DIRECTORY mounts it there, says
 * "mounted" and serves until it is killed. Whoever looks a name up in it sleeps in the kernel, where no signal
 * reaches, SIGKILL included, until this process ends.
 */
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static char request[1 << 17];

static int fail(const char *what) {
	perror(what);
	return 1;
}

int main(int argc, char **argv) {
	if (argc != 2) return 64;
	int device = open("/dev/fuse", O_RDWR);
	if (device < 0) return fail("/dev/fuse");
	char options[128];
	snprintf(options, sizeof options, "fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other", device);
	if (mount("silent", argv[1], "fuse", MS_NOSUID | MS_NODEV, options) < 0) return fail(argv[1]);
	if (read(device, request, sizeof request) < 0) return fail("init");
	const struct fuse_in_header *head = (const void *)request;
	struct { struct fuse_out_header head; struct fuse_init_out init; } answer;
	memset(&answer, 0, sizeof answer);
	answer.head.len = sizeof answer;
	answer.head.unique = head->unique;
	answer.init.major = FUSE_KERNEL_VERSION;
	answer.init.minor = FUSE_KERNEL_MINOR_VERSION;
	answer.init.max_write = 4096;
	if (write(device, &answer, sizeof answer) < 0) return fail("init");
	puts("mounted");
	fflush(stdout);
	while (read(device, request, sizeof request) >= 0) continue;
	return fail("read");
}
