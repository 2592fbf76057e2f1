/* A disk that is slow at will: fsync and fdatasync wait, before they do their work, while the file $SLOWFSYNC exists.

   What is in it is how long to wait, in seconds. To remove the file ends the wait. Each call that waited is noted in
   $SLOWFSYNC.log as a line with the process id, so that a test can tell that it happened. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double asked(void)
{
    char text[64] = "";
    const char *path = getenv("SLOWFSYNC");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    return length > 0 ? atof(text) : 0;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void note(void)
{
    char path[4096], line[32];
    const char *flag = getenv("SLOWFSYNC");
    if (!flag || snprintf(path, sizeof path, "%s.log", flag) >= (int)sizeof path)
        return;
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0)
        return;
    int length = snprintf(line, sizeof line, "%d\n", (int)getpid());
    if (write(file, line, length) != length)
        fputs("slowfsync: the note was not written\n", stderr);
    close(file);
}

static void wait_while_asked(void)
{
    const struct timespec slice = {0, 5 * 1000 * 1000};
    double began = now();
    if (asked() <= 0)
        return;
    note();
    while (now() - began < asked())
        nanosleep(&slice, NULL);
}

static int pass_on(const char *name, int file)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(file);
}

int fsync(int file)
{
    wait_while_asked();
    return pass_on("fsync", file);
}

int fdatasync(int file)
{
    wait_while_asked();
    return pass_on("fdatasync", file);
}
