"""The all-reduce benchmark: bandwidth and latency by size, then of each pair of nodes."""

from __future__ import annotations

from collections.abc import Mapping
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
from hpcdist.job.imports import Preload
from hpcdist.job.spec import Allreduce, AllreduceJob
from hpcdist.machine import memory as room
from hpcdist.machine.process import boot_id
from hpcdist.rank.context import RankContext
from hpcdist.rank.workload import Workload

if TYPE_CHECKING:
    from hpcdist.bench.allreduce.measure import Measured

NUMBER_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_PAIR_BYTES = 16 << 20
"""Size that pairs of nodes exchange: enough to fill a link, also a fast one."""


class AllreduceWorkload(Workload[AllreduceJob]):
    """Measures all sizes, then all pairs of nodes."""

    def check(self) -> None:
        """Raise JobError for sizes that cannot be measured."""
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
        self._check_memory()

    def _check_memory(self) -> None:
        """On CPUs all ranks of a node certainly share resources.mem_gb."""
        mem_gb = self.job.resources.mem_gb
        if mem_gb is None or self.job.launch.device != "cpu":
            return
        largest, num_ranks = max(self.job.allreduce.sizes), self.job.resources.gpus
        if largest * num_ranks > mem_gb * 1e9:
            raise JobError(
                f"allreduce.sizes has {largest:,} bytes, with {num_ranks} ranks per node "
                f"{show_bytes(largest * num_ranks)}, but resources.mem_gb is {mem_gb:g}",
                hint="leave out the largest sizes, or ask for more memory",
            )

    def preload(self) -> Preload:
        """Return torch, and what measures."""
        return Preload(
            steps=["torch", "torch.distributed", "hpcdist.bench.allreduce.measure"],
        )

    def run(self, context: RankContext) -> None:
        """Measure, in this rank."""
        with process_group(context, context.backend):
            _AllreduceRank(context, self.job.allreduce).run()


@dataclass(frozen=True, kw_only=True)
class _Place:
    """The place of a rank, and the memory that is free there."""

    node: int
    host: str
    machine: str
    free_bytes: int


@dataclass(frozen=True, kw_only=True)
class _PairOutcome:
    """The measurements of the ranks of a pair."""

    figures: dict[str, Any]
    """Fields of its event; empty where a rank had to leave before there were any."""
    is_whole: bool


def _pair_outcome(measured: Measured | None) -> _PairOutcome:
    if measured is None:
        return _PairOutcome(figures={}, is_whole=False)
    return _PairOutcome(figures=measured.to_event(), is_whole=measured.is_whole)


def _bandwidth(fields: Mapping[str, Any]) -> float:
    return pair_bandwidth(fields["bytes"], fields["median_time_s"])


class _AllreduceRank(BenchmarkRank):
    def __init__(self, context: RankContext, setting: Allreduce) -> None:
        import torch

        super().__init__(context)
        self.setting = setting
        self._device = torch.device(context.device)
        self._dtype = getattr(torch, setting.dtype)
        self._places: list[_Place] = self.gather(self._place())
        self._sizes = self._sizes_that_fit()
        numbers = max(self._sizes) // NUMBER_BYTES[setting.dtype]
        self._buffer = torch.zeros(numbers, dtype=self._dtype, device=self._device)
        self._done = 0
        self._planned = 0

    def run(self) -> None:
        """Measure all sizes, then all pairs."""
        if self.context.world_size == 1:
            self.context.note(
                "a single rank sends nothing, so this measures only the cost of a call: "
                "use more --nodes or --gpus"
            )
        rounds = self._rounds()
        self._planned = len(self._sizes) + len(rounds)
        for size in self._sizes:
            self._begin_next()
            self._end(is_whole=self._measure_size(size))
        bandwidths: dict[Pair, float] = {}
        for pairs in rounds:
            self._begin_next()
            bandwidths |= self._measure_round(pairs)
        # Pairs that are measured at once can disturb each other, and chance plays a part: a pair
        # counts as slow only if it is slow a second time, alone.
        confirmed: set[Pair] = set()
        while (pair := next_to_confirm(bandwidths, confirmed)) is not None:
            self._planned += 1
            self._begin_next()
            bandwidths |= self._measure_round([pair])
            confirmed.add(pair)

    def _begin_next(self) -> None:
        if self.should_stop():
            raise self._stop()

    def _end(self, *, is_whole: bool) -> None:
        """End a measurement; `is_whole` is the same in all ranks."""
        if not is_whole:
            self.leave()
            raise self._stop()
        self._done += 1
        self.finish_step(self._done)

    def _stop(self) -> SystemExit:
        return self.stopped(self._done, self._planned)

    # Sizes.

    def _measure_size(self, size: int) -> bool:
        """Return whether it was measured as often as planned."""
        measured = self._measure(size)
        if measured is not None and self.context.rank == 0:
            self._report(measured)
        return measured is not None and measured.is_whole

    def _measure(self, size: int, group: Any = None) -> Measured | None:
        from hpcdist.bench.allreduce.measure import measure_all_reduce

        return measure_all_reduce(
            self._buffer[: size // NUMBER_BYTES[self.setting.dtype]],
            self.setting,
            group=group,
            alive=self.alive,
            is_to_leave=self.is_asked_to_stop,
        )

    def _report(self, measured: Measured) -> None:
        fields = measured.to_event()
        self.context.events.write(
            "collective", **fields, dtype=self.setting.dtype, checked=self.setting.check
        )
        self.context.say(
            f"{show_binary(measured.num_bytes)}: {fields['mean_time_s'] * 1e6:,.1f} µs, "
            f"algorithm {show_bytes(fields['algorithm_bytes_per_s'])}/s, "
            f"bus {show_bytes(fields['bus_bytes_per_s'])}/s ({fields['iterations']} times)"
        )

    # Room.

    def _place(self) -> _Place:
        import torch

        if self._device.type == "cuda":
            free_bytes = torch.cuda.mem_get_info(self._device)[0]
        else:
            free_bytes = room.free_host_bytes()
        return _Place(
            node=self.context.node_rank,
            host=self.context.host,
            machine=boot_id(),
            free_bytes=free_bytes,
        )

    def _sizes_that_fit(self) -> list[int]:
        """Return the sizes that fit into the memory of the rank with the least, in all ranks."""
        rooms = [self._room(place) for place in self._places]
        least = min(range(len(rooms)), key=lambda rank: rooms[rank])
        fitting, too_large = room.split_by_room(self.setting.sizes, rooms[least])
        place = self._places[least]
        why = (
            f"rank {least} on {place.host} must not use more than {show_bytes(rooms[least])}: "
            f"{show_bytes(place.free_bytes)} are free there, for "
            f"{self._num_sharing(place)} of the ranks"
        )
        if not fitting:
            raise RuntimeError(f"none of allreduce.sizes fits into memory; {why}")
        if too_large and self.context.rank == 0:
            left_out = ", ".join(map(show_binary, too_large))
            self.context.note(f"left out for lack of memory: {left_out}; {why}")
        return fitting

    def _room(self, place: _Place) -> int:
        mem_gb = self.context.job.resources.mem_gb if self._device.type == "cpu" else None
        return room.largest_buffer(
            place.free_bytes,
            num_sharing=self._num_sharing(place),
            limit_bytes=None if mem_gb is None else mem_gb * 1e9,
            num_in_limit=self.context.local_world_size,
        )

    def _num_sharing(self, place: _Place) -> int:
        """Return how many ranks take from the same memory: each GPU has its own."""
        if self._device.type == "cuda":
            return 1
        return sum(other.machine == place.machine for other in self._places)

    # Pairs.

    def _rounds(self) -> list[list[Pair]]:
        if not self.setting.pairs:
            return []
        return plan_rounds([self._places[rank].machine for rank in self._leaders()])

    def _leaders(self) -> list[int]:
        """Return the first rank of each node."""
        first: dict[int, int] = {}
        for rank, place in enumerate(self._places):
            first.setdefault(place.node, rank)
        return [first[node] for node in sorted(first)]

    def _measure_round(self, pairs: list[Pair]) -> dict[Pair, float]:
        """Measure pairs of nodes at the same time; return their bandwidths, in all ranks."""
        import torch.distributed as dist

        leaders = self._leaders()
        own: dict[Pair, _PairOutcome] = {}
        for pair, group in [(pair, self._group(pair, leaders)) for pair in pairs]:
            if self.context.rank in {leaders[node] for node in pair}:
                own[pair] = _pair_outcome(self._measure(self._pair_bytes(), group))
                dist.destroy_process_group(group)
        outcomes: dict[Pair, _PairOutcome] = {}
        for others in self.gather(own):
            outcomes |= others
        events = {
            pair: self._pair_fields(pair) | {"alone": len(pairs) == 1} | outcomes[pair].figures
            for pair in pairs
            if outcomes[pair].figures
        }
        if self.context.rank == 0:
            for fields in events.values():
                self._report_pair(fields)
        self._end(is_whole=all(outcome.is_whole for outcome in outcomes.values()))
        return {pair: _bandwidth(fields) for pair, fields in events.items()}

    def _group(self, pair: Pair, leaders: list[int]) -> Any:
        """Make a group; all ranks make all, in the same order, so that their names are unique."""
        import torch.distributed as dist

        return dist.new_group([leaders[node] for node in pair])

    def _pair_bytes(self) -> int:
        return max([size for size in self._sizes if size <= _PAIR_BYTES] or [min(self._sizes)])

    def _pair_fields(self, pair: Pair) -> dict[str, Any]:
        leaders = self._leaders()
        hosts = [self._places[leaders[node]].host for node in pair]
        return {"nodes": list(pair), "hosts": hosts}

    def _report_pair(self, fields: dict[str, Any]) -> None:
        self.context.events.write("pair", **fields, dtype=self.setting.dtype)
        a, b = fields["hosts"]
        self.context.say(
            f"nodes {fields['nodes'][0]} and {fields['nodes'][1]} ({a}, {b}): "
            f"bus {show_bytes(_bandwidth(fields))}/s"
            f"{' (measured alone)' if fields['alone'] else ''}"
        )
