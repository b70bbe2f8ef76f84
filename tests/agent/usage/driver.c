/* The part of NVML that is asked for, as nvml.h declares it, for two GPUs.
 *
 * GPU 0 is busy for 60 % of the time, holds a quarter of a GiB of 80, draws 300 W by its own meter, and is
 * slowed down by heat. GPU 1 tells nothing but its name and memory, as a part of a GPU does. */

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

typedef struct { unsigned int gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } Memory2;

static int numbers[2] = {0, 1};
static const unsigned long long GIB = 1ull << 30;

static int tells(void *gpu) { return *(int *)gpu == 0; }

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error"; }

int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **gpu) {
    if (index > 1) return INVALID_ARGUMENT;
    *gpu = &numbers[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu) {
    for (int index = 0; index < 2; index++) {
        char own[16];
        snprintf(own, sizeof own, "GPU-fake-%d", index);
        if (strcmp(uuid, own) == 0) return nvmlDeviceGetHandleByIndex_v2(index, gpu);
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *gpu, char *uuid, unsigned int length) {
    snprintf(uuid, length, "GPU-fake-%d", *(int *)gpu);
    return SUCCESS;
}

int nvmlDeviceGetName(void *gpu, char *name, unsigned int length) {
    (void)gpu;
    snprintf(name, length, "Fake 80GB");
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    snprintf(version, length, "550.54.15");
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *gpu, Memory2 *memory) {
    memory->total = 80 * GIB;
    memory->used = tells(gpu) ? GIB / 4 : 0;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned int *count, void *processes) {
    (void)gpu, (void)processes;
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *gpu, Utilization *rates) {
    *rates = (Utilization){60, 20};
    return tells(gpu) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetPowerUsage(void *gpu, unsigned int *milliwatts) {
    *milliwatts = 300000;
    return tells(gpu) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *millijoules) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *millijoules = 300ull * (now.tv_sec * 1000ull + now.tv_nsec / 1000000);
    return tells(gpu) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *reasons) {
    *reasons = 0x20;
    return tells(gpu) ? SUCCESS : NOT_SUPPORTED;
}
