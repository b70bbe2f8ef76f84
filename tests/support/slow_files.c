/* Preloaded: old answers of a network's file system below SLOW_FOLDER, to each process as to a host of
   its own. Where a process was told that there is nothing, it is told so again for ever, until it
   changes that path itself, or opens the folder (close-to-open). Each question takes SLOW_US. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST 4096
#define REAL(name, types) ((int(*) types)dlsym(RTLD_NEXT, #name))

static char *missing[MOST];
static int num_missing;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int is_slow(const char *path)
{
    const char *slow = getenv("SLOW_FOLDER");
    return slow && path && strncmp(path, slow, strlen(slow)) == 0;
}

/* Wait for the server, unless the path is known to be missing. */
static int is_missing(const char *path)
{
    int found = 0;
    if (!is_slow(path))
        return 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < num_missing; i++)
        found |= strcmp(missing[i], path) == 0;
    pthread_mutex_unlock(&lock);
    if (found)
        errno = ENOENT;
    else
        usleep(atoi(getenv("SLOW_US")));
    return found;
}

static int remember(const char *path, int result)
{
    if (result < 0 && errno == ENOENT && is_slow(path)) {
        pthread_mutex_lock(&lock);
        if (num_missing < MOST)
            missing[num_missing++] = strdup(path);
        pthread_mutex_unlock(&lock);
        errno = ENOENT;
    }
    return result;
}

/* Forget that there is nothing at a path, or in a folder. */
static void forget(const char *path, int is_folder)
{
    size_t length = strlen(path);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < num_missing; i++)
        if (strcmp(missing[i], path) == 0 ||
            (is_folder && strncmp(missing[i], path, length) == 0 && missing[i][length] == '/'))
            missing[i][0] = '\0';
    pthread_mutex_unlock(&lock);
}

int fstatat(int folder, const char *path, struct stat *status, int flags)
{
    if (is_missing(path))
        return -1;
    return remember(path, REAL(fstatat, (int, const char *, struct stat *, int))(folder, path, status, flags));
}

int stat(const char *path, struct stat *status) { return fstatat(AT_FDCWD, path, status, 0); }
int lstat(const char *path, struct stat *status) { return fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW); }
int fstatat64(int, const char *, struct stat64 *, int) __attribute__((alias("fstatat")));
int stat64(const char *, struct stat64 *) __attribute__((alias("stat")));
int lstat64(const char *, struct stat64 *) __attribute__((alias("lstat")));

int access(const char *path, int mode)
{
    return is_missing(path) ? -1 : remember(path, REAL(access, (const char *, int))(path, mode));
}

int openat(int folder, const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, int);
    va_end(rest);
    if (is_slow(path) && flags & (O_CREAT | O_DIRECTORY))
        forget(path, flags & O_DIRECTORY);
    if (is_missing(path))
        return -1;
    return remember(path, REAL(openat, (int, const char *, int, ...))(folder, path, flags, mode));
}

int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, int);
    va_end(rest);
    return openat(AT_FDCWD, path, flags, mode);
}

int open64(const char *, int, ...) __attribute__((alias("open")));
int openat64(int, const char *, int, ...) __attribute__((alias("openat")));

DIR *opendir(const char *path)
{
    if (is_slow(path))
        forget(path, 1);
    return ((DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir"))(path);
}

int mkdir(const char *path, mode_t mode)
{
    forget(path, 0);
    return REAL(mkdir, (const char *, mode_t))(path, mode);
}

#define MAKES(name)                                               \
    int name(const char *from, const char *to)                    \
    {                                                             \
        forget(to, 0);                                            \
        return REAL(name, (const char *, const char *))(from, to); \
    }

MAKES(rename)
MAKES(link)
MAKES(symlink)
