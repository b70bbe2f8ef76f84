"""The check job: every rank records what it sees, and all of them meet in one collective.

It needs no data and no model, so that it ends in seconds, and its events name the part of a cluster
that does not work: `hpcdist doctor` reads them.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import msgspec

from hpcdist.base.version import versions
from hpcdist.bench.allreduce.workload import size_sentence, size_table
from hpcdist.bench.cells import Findings
from hpcdist.job.spec import Allreduce, CheckJob
from hpcdist.machine.gpus import visible_uuids
from hpcdist.rank.context import RankContext, Workload
from hpcdist.training.group import process_group

_SHOWN_VARIABLES = ("RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")
_NUMBERS = 1 << 18  # 1 MiB of float32: enough to use the connections
_MEASURED = Allreduce(iterations=10, warmup=1, max_time_s=1.0)
"""Few: the check ends in seconds, and the job allreduce measures well."""


class CheckWorkload(Workload[CheckJob]):
    """Every rank records where it is, and all of them measure one all-reduce."""

    def preload(self) -> list[str]:
        """Return torch, and what measures the all-reduce."""
        return ["torch", "torch.distributed", "hpcdist.bench.allreduce.measure"]

    def run(self, context: RankContext) -> None:
        """Record this rank's place, meet the others, and measure an all-reduce of all ranks.

        Raises WrongSumError where the sum is wrong.
        """
        import torch

        from hpcdist.bench.allreduce.measure import measure_all_reduce

        device = torch.device(context.device)
        is_on_gpu = device.type == "cuda"
        gpu = visible_uuids()[context.local_rank] if is_on_gpu else None
        context.events.write(
            {
                "event": "place",
                "host": context.host,
                "environment": {name: os.environ.get(name) for name in _SHOWN_VARIABLES},
                "device": context.device,
                "gpu": gpu,
                "versions": versions() | {"torch": str(torch.__version__)},
                "token": context.run.recorded_id,
            }
        )
        if is_on_gpu:
            torch.cuda.set_device(device)
        begin_s = time.perf_counter()
        with process_group(context, timeout=timedelta(seconds=self.job.timeout_s)):
            group_time_s = time.perf_counter() - begin_s
            cell = measure_all_reduce(torch.empty(_NUMBERS, device=device), _MEASURED)
        table = size_table(context.world_size)
        times = {"group_time_s": group_time_s, "all_reduce_time_s": cell.mean_time_s}
        context.events.write({"event": "collective", **times, "bus_bytes_per_s": cell.rate})
        if context.rank == 0:
            sentence = size_sentence([cell], context.world_size)
            found = {"table": table, "cell": cell, "findings": Findings(conclusions=[sentence])}
            for kind, event in found.items():
                context.events.write({"event": kind, **msgspec.to_builtins(event)})
        context.say(f"rank {context.rank} of {context.world_size} on {context.host} added up right")
