"""The check job: every rank says what it sees, and all of them meet in one collective.

It needs no data and no model, so that it ends in seconds, and what it records names the part of a
cluster that does not work: `hpcdist doctor` reads it.
"""

from __future__ import annotations

import os
import time
from typing import Any

from hpcdist.launch.facts import visible_uuids
from hpcdist.rank import RankContext
from hpcdist.spec import CheckJob, JobSpec

_SHOWN_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
)
_NUMBERS = 1 << 18  # 1 MiB of float32: enough to use the connections, and no benchmark


def check(job: JobSpec) -> None:
    """Nothing: its keys are all there is to it."""


def prepare(job: JobSpec) -> None:
    """Nothing."""


def preload(job: JobSpec) -> list[str]:  # noqa: ARG001 - all workloads are asked so
    """torch, once per node."""
    return ["torch", "torch.distributed"]


def run(context: RankContext) -> None:
    """Record this rank's place, meet the others, and add up all ranks.

    Raises RuntimeError where the sum is wrong.
    """
    job = context.job
    assert isinstance(job, CheckJob)
    place = _place(context)
    context.events.write("place", **place)
    times = _meet(context, job.timeout_s)
    context.events.write("collective", **times)
    context.say(_sentence(context, place))
    if context.rank == 0:
        context.say(_last_sentence(context, times))


def _place(context: RankContext) -> dict[str, Any]:
    from hpcdist.submission import versions

    environment = {name: os.environ[name] for name in _SHOWN_VARIABLES if name in os.environ}
    return {
        "host": context.host,
        "environment": environment,
        "interface": environment.get("GLOO_SOCKET_IFNAME"),
        "device": context.device,
        "gpu": _gpu(context),
        "cpus": sorted(os.sched_getaffinity(0)),
        "versions": versions() | {"torch": _torch_version()},
        "token": (context.run.read_spec() or {}).get("id"),
    }


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _gpu(context: RankContext) -> str | None:
    """UUID of this rank's GPU; None on CPUs."""
    if not context.device.startswith("cuda"):
        return None
    return visible_uuids()[context.local_rank]


def _meet(context: RankContext, timeout_s: float) -> dict[str, float]:
    """Make the process group, add up all ranks, wait for all; seconds that each took."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    device = torch.device(context.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    begin_s = time.perf_counter()
    dist.init_process_group(
        backend=context.backend,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    made_s = time.perf_counter()
    numbers = torch.full((_NUMBERS,), float(context.rank), device=device)
    dist.all_reduce(numbers)
    total = float(numbers[0].item())  # waits for the GPU
    reduced_s = time.perf_counter()
    dist.barrier()
    done_s = time.perf_counter()
    _require_sum(numbers, total, context.world_size)
    dist.destroy_process_group()
    return {
        "group_time_s": made_s - begin_s,
        "all_reduce_time_s": reduced_s - made_s,
        "barrier_time_s": done_s - reduced_s,
    }


def _require_sum(numbers: Any, total: float, world_size: int) -> None:
    expected = world_size * (world_size - 1) / 2
    wrong = int((numbers != expected).sum().item())
    if wrong:
        raise RuntimeError(
            f"the sum over {world_size} ranks is {total:g} and must be {expected:g}; "
            f"{wrong:,} of {_NUMBERS:,} numbers are wrong"
        )


def _sentence(context: RankContext, place: dict[str, Any]) -> str:
    environment = place["environment"]
    device = f"{context.device} {place['gpu']}" if place["gpu"] else context.device
    way = f" by {place['interface']}" if place["interface"] else ""
    cpus = "1 CPU" if len(place["cpus"]) == 1 else f"{len(place['cpus'])} CPUs"
    return (
        f"rank {context.rank} of {context.world_size} on {context.host}: {device}, "
        f"{cpus}, torch {place['versions']['torch']}, node 0 at "
        f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}{way}"
    )


def _last_sentence(context: RankContext, times: dict[str, float]) -> str:
    ranks = "1 rank" if context.world_size == 1 else f"{context.world_size} ranks"
    return (
        f"{ranks} on {context.num_nodes} {'node' if context.num_nodes == 1 else 'nodes'} added up "
        f"right with {context.backend}: process group {times['group_time_s']:.2f} s, all-reduce "
        f"of 1 MiB {times['all_reduce_time_s'] * 1e3:.1f} ms, barrier "
        f"{times['barrier_time_s'] * 1e3:.1f} ms"
    )
