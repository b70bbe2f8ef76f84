"""The loop that one writes to time all-reduces: for torchrun.

Usage: plain_all_reduces.py RESULT bound|free ITERATIONS WARMUP SIZE...

bound: each rank binds itself to its share of the CPUs, as hpcdist binds its ranks.

For each size in bytes: a warm-up, a barrier, so many all-reduces of float32 one after the other,
the mean time of one, and the slowest rank's. Rank 0 writes {size: seconds} to the file RESULT.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    result, (iterations, warmup, *sizes) = Path(sys.argv[1]), map(int, sys.argv[3:])
    if sys.argv[2] == "bound":
        bind()
    dist.init_process_group("gloo")
    times_s = {size: time_size(size, iterations, warmup) for size in sizes}
    if dist.get_rank() == 0:
        result.write_text(json.dumps(times_s))
    dist.destroy_process_group()


def bind() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    begin, end = len(cpus) * rank // ranks, len(cpus) * (rank + 1) // ranks
    os.sched_setaffinity(0, cpus[begin:end] or [cpus[begin]])


def time_size(size: int, iterations: int, warmup: int) -> float:
    numbers = torch.zeros(size // 4)
    for _ in range(warmup):
        dist.all_reduce(numbers)
    dist.barrier()
    begin_s = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(numbers)
    time_s = torch.tensor((time.perf_counter() - begin_s) / iterations, dtype=torch.float64)
    dist.all_reduce(time_s, op=dist.ReduceOp.MAX)
    return float(time_s)


if __name__ == "__main__":
    main()
