/* Preloaded: a slow file system of a network below SLOW_FOLDER, to each process as to a host of its
   own. Each question takes SLOW_US. What a process was told of a path, also that there is nothing, it
   is told again for STALE_S, until it changes that path itself, or opens the folder (close-to-open). */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST 4096
#define REAL(result, name, ...) ((result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

struct known {
    char *path;
    struct stat status;
    int is_there;
    int follows;
    double time_s;
};

static struct known all[MOST];
static int num_known;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static int is_slow(int folder, const char *path)
{
    const char *slow = getenv("SLOW_FOLDER");
    return slow && path && (folder == AT_FDCWD || path[0] == '/') &&
           strncmp(path, slow, strlen(slow)) == 0;
}

static void wait_for_server(void)
{
    usleep(atoi(getenv("SLOW_US")));
}

static struct known *find(const char *path, int follows)
{
    for (int i = 0; i < num_known; i++)
        if (all[i].follows == follows && strcmp(all[i].path, path) == 0)
            return now_s() - all[i].time_s < atof(getenv("STALE_S")) ? &all[i] : NULL;
    return NULL;
}

static void remember(const char *path, int follows, const struct stat *status)
{
    int i = 0;
    while (i < num_known && (all[i].follows != follows || strcmp(all[i].path, path) != 0))
        i++;
    if (i == MOST)
        return;
    if (i == num_known) {
        all[i].path = strdup(path);
        all[i].follows = follows;
        num_known++;
    }
    all[i].is_there = status != NULL;
    if (status)
        all[i].status = *status;
    all[i].time_s = now_s();
}

/* Forget what is known of a path, or that something is not there in a folder. */
static void forget(const char *path, int inner)
{
    size_t length = strlen(path);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < num_known; i++) {
        int is_same = strcmp(all[i].path, path) == 0;
        int is_within = strncmp(all[i].path, path, length) == 0 && all[i].path[length] == '/';
        if (is_same || (inner && is_within && !all[i].is_there))
            all[i].time_s = -1e9;
    }
    pthread_mutex_unlock(&lock);
}

static int ask(int folder, const char *path, struct stat *status, int flags)
{
    int (*real)(int, const char *, struct stat *, int) =
        REAL(int, fstatat, int, const char *, struct stat *, int);
    if (!is_slow(folder, path))
        return real(folder, path, status, flags);
    int follows = !(flags & AT_SYMLINK_NOFOLLOW);
    pthread_mutex_lock(&lock);
    struct known *known = find(path, follows);
    int is_there = known && known->is_there;
    if (is_there)
        *status = known->status;
    pthread_mutex_unlock(&lock);
    if (!known) {
        wait_for_server();
        is_there = real(folder, path, status, flags) == 0;
        if (!is_there && errno != ENOENT)
            return -1;
        pthread_mutex_lock(&lock);
        remember(path, follows, is_there ? status : NULL);
        pthread_mutex_unlock(&lock);
    }
    errno = is_there ? errno : ENOENT;
    return is_there ? 0 : -1;
}

int fstatat(int folder, const char *path, struct stat *status, int flags)
{
    return ask(folder, path, status, flags);
}

int stat(const char *path, struct stat *status)
{
    return ask(AT_FDCWD, path, status, 0);
}

int lstat(const char *path, struct stat *status)
{
    return ask(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}

int fstatat64(int, const char *, struct stat64 *, int) __attribute__((alias("fstatat")));
int stat64(const char *, struct stat64 *) __attribute__((alias("stat")));
int lstat64(const char *, struct stat64 *) __attribute__((alias("lstat")));

int access(const char *path, int mode)
{
    struct stat status;
    if (!is_slow(AT_FDCWD, path))
        return REAL(int, access, const char *, int)(path, mode);
    return ask(AT_FDCWD, path, &status, 0);
}

/* Return -1 where the file is known not to be there, else wait, and take what is found anew. */
static int before_open(int folder, const char *path, int flags)
{
    if (!is_slow(folder, path))
        return 0;
    pthread_mutex_lock(&lock);
    struct known *known = flags & O_CREAT ? NULL : find(path, 1);
    int is_missing = known && !known->is_there;
    pthread_mutex_unlock(&lock);
    if (is_missing) {
        errno = ENOENT;
        return -1;
    }
    wait_for_server();
    forget(path, flags & O_DIRECTORY);
    return 0;
}

static int after_open(int folder, const char *path, int descriptor)
{
    if (descriptor < 0 && errno == ENOENT && is_slow(folder, path)) {
        pthread_mutex_lock(&lock);
        remember(path, 1, NULL);
        pthread_mutex_unlock(&lock);
        errno = ENOENT;
    }
    return descriptor;
}

#define MODE(flags)                                        \
    va_list rest;                                          \
    va_start(rest, flags);                                 \
    mode_t mode = va_arg(rest, int);                       \
    va_end(rest)

int openat(int folder, const char *path, int flags, ...)
{
    MODE(flags);
    if (before_open(folder, path, flags))
        return -1;
    int (*real)(int, const char *, int, ...) = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat");
    return after_open(folder, path, real(folder, path, flags, mode));
}

int open(const char *path, int flags, ...)
{
    MODE(flags);
    return openat(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE(flags);
    return openat(AT_FDCWD, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...)
{
    MODE(flags);
    return openat(folder, path, flags, mode);
}

DIR *opendir(const char *path)
{
    if (before_open(AT_FDCWD, path, O_DIRECTORY))
        return NULL;
    return REAL(DIR *, opendir, const char *)(path);
}

#define CHANGES_ONE(name, types, names)                    \
    int name types                                         \
    {                                                      \
        if (is_slow(AT_FDCWD, path)) {                     \
            wait_for_server();                             \
            forget(path, 0);                               \
        }                                                  \
        return ((int(*) types)dlsym(RTLD_NEXT, #name))names; \
    }

#define CHANGES_TWO(name)                                  \
    int name(const char *from, const char *to)             \
    {                                                      \
        if (is_slow(AT_FDCWD, to)) {                       \
            wait_for_server();                             \
            forget(from, 0);                               \
            forget(to, 0);                                 \
        }                                                  \
        return REAL(int, name, const char *, const char *)(from, to); \
    }

CHANGES_ONE(unlink, (const char *path), (path))
CHANGES_ONE(rmdir, (const char *path), (path))
CHANGES_ONE(mkdir, (const char *path, mode_t mode), (path, mode))
CHANGES_TWO(rename)
CHANGES_TWO(link)
CHANGES_TWO(symlink)
