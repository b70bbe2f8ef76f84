/* Preloaded: each open of a file below SLOW_FOLDER takes SLOW_OPEN_US longer, as on storage that
   answers late. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_for_storage(const char *path)
{
    const char *folder = getenv("SLOW_FOLDER");
    if (folder && strncmp(path, folder, strlen(folder)) == 0)
        usleep(atoi(getenv("SLOW_OPEN_US")));
}

#define SLOW(name)                                                          \
    int name(const char *path, int flags, ...)                              \
    {                                                                       \
        static int (*real)(const char *, int, ...);                         \
        va_list rest;                                                       \
        va_start(rest, flags);                                              \
        mode_t mode = va_arg(rest, int);                                    \
        va_end(rest);                                                       \
        if (!real)                                                          \
            real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name); \
        wait_for_storage(path);                                             \
        return real(path, flags, mode);                                     \
    }

SLOW(open)
SLOW(open64)
