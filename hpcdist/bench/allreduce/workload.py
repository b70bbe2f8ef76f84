"""The all-reduce benchmark: bandwidth and latency by size.

By the definitions of nccl-tests (doc/PERFORMANCE.md of github.com/NVIDIA/nccl-tests), the algorithm
bandwidth is the size over the time. Of n ranks, each must send and receive at least 2 (n - 1) / n
of the size, whatever the algorithm. The bus bandwidth is the algorithm bandwidth times that, so it
can be compared with the speed of the hardware for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.errors import JobError
from hpcdist.base.text import format_time, number_of, show_binary, show_bytes
from hpcdist.bench.cells import CellTable, Findings, TimedCell
from hpcdist.bench.ranks import BenchmarkRank, process_group
from hpcdist.job.check import check_each_once
from hpcdist.job.spec import Allreduce, AllreduceJob
from hpcdist.rank.context import RankContext, Workload

_NUMBER_BYTES = 4


class AllreduceWorkload(Workload[AllreduceJob]):
    """Measures all sizes."""

    def check(self) -> None:
        setting = self.job.allreduce
        if not setting.sizes:
            raise JobError("allreduce.sizes is empty", hint="list at least one size in bytes")
        often = "allreduce.iterations says how often it is measured"
        check_each_once("allreduce.sizes", setting.sizes, hint=often, show="{:,}".format)
        for size in setting.sizes:
            if size % _NUMBER_BYTES:
                raise JobError(
                    f"allreduce.sizes has {size:,}, which is no multiple of the {_NUMBER_BYTES} "
                    "bytes of a float32",
                    hint=f"take {size // _NUMBER_BYTES * _NUMBER_BYTES:,}",
                )

    def preload(self) -> list[str]:
        return ["torch", "torch.distributed", "hpcdist.bench.allreduce.measure"]

    def run(self, context: RankContext) -> None:
        with process_group(context, context.backend):
            _AllreduceRank(context, self.job.allreduce).run()


class _AllreduceRank(BenchmarkRank):
    def __init__(self, context: RankContext, setting: Allreduce) -> None:
        import torch

        super().__init__(context, size_table(context.world_size))
        self._setting = setting
        self._buffer = torch.zeros(max(setting.sizes) // _NUMBER_BYTES, device=context.device)

    def run(self) -> None:
        if self.context.world_size == 1:
            self.note(
                "a single rank sends nothing, so this measures only the cost of a call: "
                "use more --nodes or --gpus"
            )
        self.measure_all(self._setting.sizes, self._measure)

    def find(self) -> Findings:
        cells, num_ranks = self.cells("all_reduce"), self.context.world_size
        sentence = size_sentence(cells, num_ranks)
        return Findings(conclusions=[sentence])

    def _measure(self, size: int) -> None:
        from hpcdist.bench.allreduce.measure import measure_all_reduce

        buffer = self._buffer[: size // _NUMBER_BYTES]
        alive = self.context.progress.alive
        self.record(measure_all_reduce(buffer, self._setting, alive=alive))


def size_table(num_ranks: int) -> CellTable:
    """Return the table of all-reduces of several sizes over all ranks."""
    return CellTable(
        name="all_reduce",
        caption=f"all-reduce of float32 by size, slowest of {number_of(num_ranks, 'rank')}",
        rate="bus_bytes_per_s",
        x="size_bytes",
    )


def size_sentence(cells: Sequence[TimedCell], num_ranks: int) -> str:
    """Say the latency, of the smallest size, and the largest bandwidth."""
    smallest = min(cells, key=lambda cell: cell.keys["size_bytes"])
    best = max(cells, key=lambda cell: cell.rate or 0.0)
    bandwidth = ""
    if best.rate:  # one rank sends nothing
        bandwidth = f", at most {show_bytes(best.rate)}/s bus bandwidth, with {_size(best)}"
    return (
        f"all-reduce over {number_of(num_ranks, 'rank')}: "
        f"{format_time(smallest.more['median_time_s'])} with {_size(smallest)} "
        f"(p95 {format_time(smallest.more['p95_time_s'])}){bandwidth}; "
        "all sums right."
    )


def _size(cell: TimedCell) -> str:
    return show_binary(int(cell.keys["size_bytes"]))
