"""The all-reduce benchmark: bandwidth and latency by size, then of each pair of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import JobError
from hpcdist.base.text import show_binary, show_bytes
from hpcdist.bench.allreduce.figures import (
    Pair,
    next_to_confirm,
    pair_bandwidth,
    plan_rounds,
)
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
        # On CPUs all ranks of a node certainly share resources.mem_gb.
        mem_gb = self.job.resources.mem_gb if self.job.launch.device == "cpu" else None
        largest, num_ranks = max(setting.sizes), self.job.resources.gpus
        if mem_gb is not None and largest * num_ranks > mem_gb * 1e9:
            raise JobError(
                f"allreduce.sizes has {largest:,} bytes, with {num_ranks} ranks per node "
                f"{show_bytes(largest * num_ranks)}, but resources.mem_gb is {mem_gb:g}",
                hint="leave out the largest sizes, or ask for more memory",
            )

    def preload(self) -> list[str]:
        return ["torch", "torch.distributed", "hpcdist.bench.allreduce.measure"]

    def run(self, context: RankContext) -> None:
        with process_group(context, context.backend):
            _AllreduceRank(context, self.job.allreduce).run()


@dataclass(frozen=True, kw_only=True)
class _Place:
    """The place of a rank, and the memory that is free there."""

    node: int
    host: str
    machine: str
    free_bytes: int


class _AllreduceRank(BenchmarkRank):
    def __init__(self, context: RankContext, setting: Allreduce) -> None:
        import torch

        super().__init__(context)
        self.setting = setting
        self._device = torch.device(context.device)
        self._dtype = getattr(torch, setting.dtype)
        place = _Place(
            node=context.node_rank,
            host=context.host,
            machine=boot_id(),
            free_bytes=(
                torch.cuda.mem_get_info(self._device)[0]
                if self._device.type == "cuda"
                else free_bytes()
            ),
        )
        self._places: list[_Place] = self.gather(place)
        first = {own.node: rank for rank, own in reversed([*enumerate(self._places)])}
        self._leaders = [first[node] for node in sorted(first)]
        """First rank of each node."""
        self._sizes = self._sizes_that_fit()
        numbers = max(self._sizes) // NUMBER_BYTES[setting.dtype]
        self._buffer = torch.zeros(numbers, dtype=self._dtype, device=self._device)
        self._bandwidths: dict[Pair, float] = {}

    def run(self) -> None:
        if self.context.world_size == 1:
            self.context.note(
                "a single rank sends nothing, so this measures only the cost of a call: "
                "use more --nodes or --gpus"
            )
        machines = [self._places[rank].machine for rank in self._leaders]
        rounds = plan_rounds(machines) if self.setting.pairs else []
        plan: list[int | list[Pair]] = [*self._sizes, *rounds]
        confirmed: set[Pair] = set()

        def measure(planned: int | list[Pair]) -> bool:
            if isinstance(planned, int):
                return self._measure_size(planned)
            is_whole = self._measure_round(planned)
            # Pairs that are measured at once can disturb each other, and chance plays a part: a
            # pair counts as slow only if it is slow a second time, alone.
            pair = next_to_confirm(self._bandwidths, confirmed)
            if planned is plan[-1] and pair is not None:
                plan.append([pair])
                confirmed.add(pair)
            return is_whole

        self.measure_all(plan, measure)

    def _measure(self, size: int, group: Any = None) -> Measured | None:
        from hpcdist.bench.allreduce.measure import measure_all_reduce

        return measure_all_reduce(
            self._buffer[: size // NUMBER_BYTES[self.setting.dtype]],
            self.setting,
            group=group,
            alive=self.alive,
            is_to_leave=self.is_asked_to_stop,
        )

    def _measure_size(self, size: int) -> bool:
        measured = self._measure(size)
        if measured is None:
            return False
        fields = measured.to_event()
        line = (
            f"{show_binary(measured.num_bytes)}: {fields['mean_time_s'] * 1e6:,.1f} µs, "
            f"algorithm {show_bytes(fields['algorithm_bytes_per_s'])}/s, "
            f"bus {show_bytes(fields['bus_bytes_per_s'])}/s ({fields['iterations']} times)"
        )
        setting = self.setting
        self.report("collective", line, fields | {"dtype": setting.dtype, "checked": setting.check})
        return measured.is_whole

    def _sizes_that_fit(self) -> list[int]:
        """Return the sizes that fit into the memory of the rank with the least, in all ranks."""
        mem_gb = self.context.job.resources.mem_gb if self._device.type == "cpu" else None
        rooms = []
        for place in self._places:
            shares = [place.free_bytes / self._num_sharing(place)]
            if mem_gb is not None:
                shares.append(mem_gb * 1e9 / self.context.local_world_size)
            rooms.append(int(_USABLE * min(shares)))
        least = min(range(len(rooms)), key=lambda rank: rooms[rank])
        fitting = [size for size in self.setting.sizes if size <= rooms[least]]
        too_large = [size for size in self.setting.sizes if size > rooms[least]]
        place = self._places[least]
        why = (
            f"rank {least} on {place.host} must not use more than {show_bytes(rooms[least])}: "
            f"{show_bytes(place.free_bytes)} are free there, for "
            f"{self._num_sharing(place)} of the ranks"
        )
        if not fitting:
            raise RuntimeError(f"none of allreduce.sizes fits into memory; {why}")
        if too_large:
            left_out = ", ".join(map(show_binary, too_large))
            self.note(f"left out for lack of memory: {left_out}; {why}")
        return fitting

    def _num_sharing(self, place: _Place) -> int:
        """Return how many ranks take from the same memory: each GPU has its own."""
        if self._device.type == "cuda":
            return 1
        return sum(other.machine == place.machine for other in self._places)

    def _measure_round(self, pairs: list[Pair]) -> bool:
        """Measure pairs of nodes at the same time; return whether all were whole, in all ranks."""
        import torch.distributed as dist

        size = max([size for size in self._sizes if size <= _PAIR_BYTES] or [min(self._sizes)])
        ranks = {pair: [self._leaders[node] for node in pair] for pair in pairs}
        # All ranks make all groups, in the same order, so that their names are unique.
        groups = {pair: dist.new_group(ranks[pair]) for pair in pairs}
        own: dict[Pair, tuple[dict[str, Any] | None, bool]] = {}
        for pair, group in groups.items():
            if self.context.rank in ranks[pair]:
                measured = self._measure(size, group)
                # No figures where a rank had to leave before there were any.
                own[pair] = (measured.to_event(), measured.is_whole) if measured else (None, False)
                dist.destroy_process_group(group)
        outcomes = {pair: outcome for of in self.gather(own) for pair, outcome in of.items()}
        for pair in pairs:
            fields, _ = outcomes[pair]
            if fields:
                hosts = [self._places[rank].host for rank in ranks[pair]]
                self._bandwidths[pair] = pair_bandwidth(fields["bytes"], fields["median_time_s"])
                place = {"nodes": list(pair), "hosts": hosts, "alone": len(pairs) == 1}
                line = (
                    f"nodes {pair[0]} and {pair[1]} ({', '.join(hosts)}): "
                    f"bus {show_bytes(self._bandwidths[pair])}/s"
                    f"{' (measured alone)' if place['alone'] else ''}"
                )
                self.report("pair", line, place | fields | {"dtype": self.setting.dtype})
        return all(is_whole for _, is_whole in outcomes.values())
