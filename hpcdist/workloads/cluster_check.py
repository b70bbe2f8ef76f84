"""The check job: every rank records what it sees, and all of them meet in one collective.

It needs no data and no model, so that it ends in seconds, and its events name the part of a cluster
that does not work: `hpcdist doctor` reads them.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

from hpcdist.job.spec import Allreduce, CheckJob
from hpcdist.machine.gpus import driver_cuda_version, visible_uuids
from hpcdist.rank.context import RankContext
from hpcdist.rank.workload import Workload
from hpcdist.runs.spec import RunSpec
from hpcdist.training.group import process_group

_SHOWN_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
)
_SHOWN_TIMES = ("group_time_s", "all_reduce_time_s", "barrier_time_s")
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
        context.events.write({"event": "place", **place})
        times = _meet(context, self.job.timeout_s)
        context.events.write({"event": "collective", **times})
        where = f"{context.device} {place['gpu'] or ''}".strip()
        context.say(f"rank {context.rank} of {context.world_size} on {context.host}: {where}")
        if context.rank == 0:
            times_s = ", ".join(f"{name} {times[name]:.3g}" for name in _SHOWN_TIMES)
            context.say(f"{context.world_size} ranks added up right: {times_s}")


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
    import torch
    import torch.distributed as dist

    from hpcdist.bench.allreduce.measure import measure_all_reduce

    device = torch.device(context.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    begin_s = time.perf_counter()
    with process_group(context, timeout=timedelta(seconds=timeout_s)):
        made_s = time.perf_counter()
        measured = measure_all_reduce(
            torch.empty(_NUMBERS, device=device),
            Allreduce(iterations=_ITERATIONS, warmup=1, max_time_s=_MAX_TIME_S, check=True),
        )
        reduced_s = time.perf_counter()
        dist.barrier()
        done_s = time.perf_counter()
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
