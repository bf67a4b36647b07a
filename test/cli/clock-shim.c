/*
 * A wall clock that is off: adds the milliseconds in /etc/clock-offset to what the real-time clock says. Loaded into
 * every program of a host by /etc/ld.so.preload. Clocks that only count, and the times of files, stay as they are.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

static long long offset_ms(void)
{
	long long ms = 0;
	FILE *file = fopen("/etc/clock-offset", "re");

	if (file == NULL)
		return 0;
	if (fscanf(file, "%lld", &ms) != 1)
		ms = 0;
	fclose(file);
	return ms;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
	static int (*real)(clockid_t, struct timespec *);
	long long ns;
	int end;

	if (real == NULL)
		real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	end = real(clock, at);
	if (end != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
		return end;
	ns = (long long)at->tv_sec * 1000000000LL + at->tv_nsec + offset_ms() * 1000000LL;
	at->tv_sec = ns / 1000000000LL;
	at->tv_nsec = ns % 1000000000LL;
	return 0;
}

int gettimeofday(struct timeval *at, void *zone)
{
	struct timespec now;

	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &now) != 0)
		return -1;
	at->tv_sec = now.tv_sec;
	at->tv_usec = now.tv_nsec / 1000;
	return 0;
}
