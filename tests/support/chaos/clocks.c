/* Clocks that jump: what a process reads from CLOCK_REALTIME and CLOCK_BOOTTIME is shifted by what $CLOCKSHIFT says.

   $CLOCKSHIFT is a file of two signed 64-bit numbers of nanoseconds, first for the wall clock and then for the
   boot-time clock. It is mapped, so that a change is seen by the next call, in this process and in those it forks.
   The monotonic clock, which does not count a suspend, is never shifted. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

static const volatile int64_t none[2];
static const volatile int64_t *shift = none; /* the wall clock's, the boot-time clock's */

__attribute__((constructor)) static void map_shift(void)
{
    const char *path = getenv("CLOCKSHIFT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (found == MAP_FAILED) {
        perror("clocks: $CLOCKSHIFT");
        _exit(127); /* to go on would be to run a test with clocks that never jump */
    }
    close(file);
    shift = found;
}

static int64_t shift_of(clockid_t clock)
{
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        return shift[0];
    case CLOCK_BOOTTIME:
        return shift[1];
    default:
        return 0;
    }
}

static int64_t nanoseconds(const struct timespec *time)
{
    return time->tv_sec * SECOND + time->tv_nsec;
}

static struct timespec timespec_of(int64_t nanoseconds)
{
    struct timespec time = {nanoseconds / SECOND, nanoseconds % SECOND};
    return time;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    /* The kernel is asked directly: the C library's function of this name is hidden by this one. */
    int result = syscall(SYS_clock_gettime, clock, time);
    int64_t by = shift_of(clock);
    if (result == 0 && by)
        *time = timespec_of(nanoseconds(time) + by);
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    time->tv_sec = precise.tv_sec;
    time->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (where)
        *where = precise.tv_sec;
    return precise.tv_sec;
}

/* Waits until a point of the wall clock (Python's locks up to 3.10 and where the C library is old). The kernel's clock
   does not jump, so the wait is cut into slices and the shifted clock is read after each: as with a real jump, a wait
   ends at once when its end is passed over, and lasts longer when the clock was set back. */
int sem_timedwait(sem_t *semaphore, const struct timespec *until)
{
    static int (*real)(sem_t *, const struct timespec *);
    if (!real)
        real = (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
    for (;;) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        int64_t left = nanoseconds(until) - nanoseconds(&now);
        int64_t slice = left < SECOND / 20 ? left : SECOND / 20;
        struct timespec end = timespec_of(nanoseconds(&now) - shift[0] + (slice > 0 ? slice : 0));
        if (real(semaphore, &end) == 0)
            return 0;
        if (errno != ETIMEDOUT || left <= slice)
            return -1;
    }
}
