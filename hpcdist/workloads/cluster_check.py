"""The check job: every rank records what it sees, and all of them meet in one collective.

It needs no data and no model, so that it ends in seconds, and its events name the part of a cluster
that does not work: `hpcdist doctor` reads them.
"""

from __future__ import annotations

import os
import time
from typing import Any

from hpcdist.base.text import number_of, show_bytes
from hpcdist.job.spec import Allreduce, CheckJob
from hpcdist.machine.gpus import driver_cuda_version, visible_uuids
from hpcdist.rank.context import RankContext
from hpcdist.rank.workload import Workload
from hpcdist.runs.spec import RunSpec

_SHOWN_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
)
_NUMBERS = 1 << 18  # 1 MiB of float32: enough to use the connections
_ITERATIONS = 10  # few: the check ends in seconds, and the job allreduce measures well
_MAX_TIME_S = 1.0


class CheckWorkload(Workload[CheckJob]):
    """Every rank records where it is, and all of them measure one all-reduce."""

    def preload(self) -> list[str]:
        """Return torch, and what measures the all-reduce."""
        return ["torch", "torch.distributed", "hpcdist.bench.allreduce.measure"]

    def run(self, context: RankContext) -> None:
        """Record this rank's place, meet the others, and measure an all-reduce of all ranks.

        Raises WrongSumError where the sum is wrong.
        """
        place = _place(context)
        context.events.write("place", **place)
        times = _meet(context, self.job.timeout_s)
        context.events.write("collective", **times)
        context.say(_place_sentence(context, place))
        if context.rank == 0:
            context.say(_times_sentence(context, times))


def _place(context: RankContext) -> dict[str, Any]:
    import torch

    from hpcdist.base.version import versions

    environment = {name: os.environ[name] for name in _SHOWN_VARIABLES if name in os.environ}
    return {
        "host": context.host,
        "environment": environment,
        "interface": environment.get("GLOO_SOCKET_IFNAME"),
        "device": context.device,
        "gpu": visible_uuids()[context.local_rank] if context.device != "cpu" else None,
        "cpus": sorted(os.sched_getaffinity(0)),
        "versions": versions() | {"torch": str(torch.__version__)},
        "cuda": {"torch": torch.version.cuda, "driver": driver_cuda_version()},
        "token": (context.run.read_spec() or RunSpec()).id,
    }


def _meet(context: RankContext, timeout_s: float) -> dict[str, Any]:
    """Make the process group, add up all ranks, wait for all; return the time of each."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from hpcdist.bench.allreduce.measure import measure_all_reduce

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
    measured = measure_all_reduce(
        torch.empty(_NUMBERS, device=device),
        Allreduce(iterations=_ITERATIONS, warmup=1, max_time_s=_MAX_TIME_S, check=True),
    )
    reduced_s = time.perf_counter()
    dist.barrier()
    done_s = time.perf_counter()
    dist.destroy_process_group()
    assert measured is not None  # nobody tells these ranks to leave
    fields = measured.to_event()
    return {
        "group_time_s": made_s - begin_s,
        "all_reduce_time_s": fields["mean_time_s"],
        "barrier_time_s": done_s - reduced_s,
        "dtype": "float32",
        "checked": True,
        **fields,
    }


def _place_sentence(context: RankContext, place: dict[str, Any]) -> str:
    environment = place["environment"]
    device = f"{context.device} {place['gpu']}" if place["gpu"] else context.device
    way = f" by {place['interface']}" if place["interface"] else ""
    cpus = number_of(len(place["cpus"]), "CPU")
    return (
        f"rank {context.rank} of {context.world_size} on {context.host}: {device}, "
        f"{cpus}, torch {place['versions']['torch']}, node 0 at "
        f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}{way}"
    )


def _times_sentence(context: RankContext, times: dict[str, Any]) -> str:
    ranks = number_of(context.world_size, "rank")
    nodes = number_of(context.num_nodes, "node")
    bus = times["bus_bytes_per_s"]  # one rank sends nothing
    bandwidth = f" (bus bandwidth {show_bytes(bus)}/s)" if bus else ""
    group_s, all_reduce_ms = times["group_time_s"], times["all_reduce_time_s"] * 1e3
    return (
        f"{ranks} on {nodes} added up right with {context.backend}: process group {group_s:.2f} s, "
        f"all-reduce of 1 MiB {all_reduce_ms:.1f} ms{bandwidth}, barrier "
        f"{times['barrier_time_s'] * 1e3:.1f} ms"
    )
