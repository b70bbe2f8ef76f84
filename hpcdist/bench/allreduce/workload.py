"""The all-reduce benchmark: bandwidth and latency by size, then of each pair of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.text import show_binary, show_bytes
from hpcdist.bench.allreduce.bandwidth import (
    Pair,
    bus_bandwidth,
    next_to_confirm,
    pair_sentences,
    plan_rounds,
    size_sentence,
    size_table,
)
from hpcdist.bench.cells import CellTable, Findings
from hpcdist.bench.ranks import BenchmarkRank, process_group
from hpcdist.job.check import check_each_once
from hpcdist.job.spec import Allreduce, AllreduceJob
from hpcdist.machine.memory import free_bytes
from hpcdist.machine.process import boot_id
from hpcdist.rank.context import RankContext, Workload

if TYPE_CHECKING:
    from hpcdist.bench.allreduce.measure import Measured

NUMBER_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_PAIR_BYTES = 16 << 20
"""Size that pairs of nodes exchange: enough to fill a link, also a fast one."""
_USABLE = 0.5
"""Share of free memory: buffers of gloo and NCCL, and other programs, need the rest."""
_PAIR_TABLE = CellTable(
    name="pair", caption="pairs of nodes, by the median time", rate="bus_bytes_per_s", slowest=12
)


class AllreduceWorkload(Workload[AllreduceJob]):
    """Measures all sizes, then all pairs of nodes."""

    def check(self) -> None:
        setting = self.job.allreduce
        if not setting.sizes:
            raise JobError("allreduce.sizes is empty", hint="list at least one size in bytes")
        often = "allreduce.iterations says how often it is measured"
        check_each_once("allreduce.sizes", setting.sizes, hint=often, show="{:,}".format)
        number_bytes = NUMBER_BYTES[setting.dtype]
        for size in setting.sizes:
            if size % number_bytes:
                raise JobError(
                    f"allreduce.sizes has {size:,}, which is no multiple of the {number_bytes} "
                    f"bytes of a {setting.dtype}",
                    hint=f"take {max(1, size // number_bytes) * number_bytes:,}",
                )
        if setting.pairs and self.job.resources.nodes < 2:
            raise JobError(
                "allreduce.pairs is true, but resources.nodes is 1",
                hint="ask for 2 nodes or more, with --nodes, or leave allreduce.pairs out",
            )

    def preload(self) -> list[str]:
        return ["torch", "torch.distributed", "hpcdist.bench.allreduce.measure"]

    def run(self, context: RankContext) -> None:
        with process_group(context, context.backend):
            _AllreduceRank(context, self.job.allreduce).run()


class _AllreduceRank(BenchmarkRank):
    def __init__(self, context: RankContext, setting: Allreduce) -> None:
        import torch

        tables = [size_table(setting.dtype, context.world_size), _PAIR_TABLE]
        super().__init__(context, *tables[: 1 + setting.pairs])
        self.setting = setting
        device = torch.device(context.device)
        self._is_on_cpu = device.type == "cpu"
        free = free_bytes() if self._is_on_cpu else torch.cuda.mem_get_info(device)[0]
        places = self.gather((context.node_rank, context.host, boot_id(), free))
        nodes, hosts, machines, room_bytes = (list(each) for each in zip(*places, strict=True))
        self._leaders = [nodes.index(node) for node in range(context.num_nodes)]
        """First rank of each node."""
        self._hosts = [hosts[rank] for rank in self._leaders]
        self._machines = [machines[rank] for rank in self._leaders]
        if self._is_on_cpu:  # else each GPU has its own memory
            room_bytes = [
                free // machines.count(machine)
                for free, machine in zip(room_bytes, machines, strict=True)
            ]
        self._sizes = self._sizes_that_fit(room_bytes, hosts)
        self._buffer = torch.zeros(
            max(self._sizes) // NUMBER_BYTES[setting.dtype],
            dtype=getattr(torch, setting.dtype),
            device=device,
        )
        self._bandwidths: dict[Pair, float] = {}

    def run(self) -> None:
        if self.context.world_size == 1:
            self.note(
                "a single rank sends nothing, so this measures only the cost of a call: "
                "use more --nodes or --gpus"
            )
        rounds = plan_rounds(self._machines) if self.setting.pairs else []
        plan: list[int | list[Pair]] = [*self._sizes, *rounds]
        confirmed: set[Pair] = set()

        def measure(planned: int | list[Pair]) -> None:
            if isinstance(planned, int):
                keys = {"size_bytes": planned}
                self.record(self._measure(planned).to_cell("all_reduce", keys))
                return
            self._measure_round(planned)
            # Pairs that are measured at once can disturb each other, and chance plays a part: a
            # pair counts as slow only if it is slow a second time, alone.
            pair = next_to_confirm(self._bandwidths, confirmed)
            if planned is plan[-1] and pair is not None:
                plan.append([pair])
                confirmed.add(pair)

        self.measure_all(plan, measure)

    def find(self) -> Findings:
        cells, num_ranks = self.cells("all_reduce"), self.context.world_size
        on_sizes = size_sentence(cells, num_ranks, checked=self.setting.check)
        return Findings(conclusions=[on_sizes, *pair_sentences(self._bandwidths, self._hosts)])

    def _measure(self, size: int, group: Any = None) -> Measured:
        from hpcdist.bench.allreduce.measure import measure_all_reduce

        return measure_all_reduce(
            self._buffer[: size // NUMBER_BYTES[self.setting.dtype]],
            self.setting,
            group=group,
            alive=self.context.progress.alive,
        )

    def _sizes_that_fit(self, room_bytes: list[int], hosts: list[str]) -> list[int]:
        """Return the sizes that fit into the memory of the rank with the least, in all ranks."""
        least = room_bytes.index(min(room_bytes))
        usable = _USABLE * room_bytes[least]
        mem_gb = self.context.job.resources.mem_gb if self._is_on_cpu else None
        if mem_gb is not None:
            usable = min(usable, _USABLE * mem_gb * 1e9 / self.context.local_world_size)
        fitting = [size for size in self.setting.sizes if size <= usable]
        too_large = [show_binary(size) for size in self.setting.sizes if size > usable]
        why = (
            f"rank {least} on {hosts[least]} must not use more than {show_bytes(usable)}, half of "
            "its share of what is free, or of resources.mem_gb"
        )
        if not fitting:
            raise RuntimeError(f"none of allreduce.sizes fits into memory; {why}")
        if too_large:
            self.note(f"left out for lack of memory: {', '.join(too_large)}; {why}")
        return fitting

    def _measure_round(self, pairs: list[Pair]) -> None:
        """Measure pairs of nodes at the same time."""
        import torch.distributed as dist

        size = max([size for size in self._sizes if size <= _PAIR_BYTES] or [min(self._sizes)])
        ranks = {pair: [self._leaders[node] for node in pair] for pair in pairs}
        # All ranks make all groups, in the same order, so that their names are unique.
        groups = {pair: dist.new_group(ranks[pair]) for pair in pairs}
        own: dict[Pair, Measured] = {}
        for pair, group in groups.items():
            if self.context.rank in ranks[pair]:
                own[pair] = self._measure(size, group)
                dist.destroy_process_group(group)
        outcomes = {pair: measured for of in self.gather(own) for pair, measured in of.items()}
        for pair, measured in outcomes.items():
            cell = measured.to_cell(
                "pair",
                {"nodes": "{} {}".format(*pair)},
                hosts=[self._hosts[node] for node in pair],
                note="measured alone" if len(pairs) == 1 else None,
            )
            # By the median: a slow link is slow each time, while a single stall of a busy node
            # would pull the mean of a few all-reduces below any limit.
            bandwidth = bus_bandwidth(size, cell.more["median_time_s"], 2)
            self._bandwidths[pair] = bandwidth
            self.record(msgspec.structs.replace(cell, rate=bandwidth))
