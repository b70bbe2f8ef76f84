"""The ranks of a benchmark: their group, what they exchange and record, and how they stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.bench.cells import (
    EVENT_TYPES,
    BenchmarkSummary,
    CellTable,
    Findings,
    TimedCell,
    in_line,
    summarize,
)
from hpcdist.rank.context import RankContext
from hpcdist.training import group

_BEAT_S = 5.0
_LEAST_TIMES = 3
_Planned = TypeVar("_Planned")
_GROUP_TIMEOUT = timedelta(days=1)
"""A rank that waits this long waits for one that is measured; a hang is seen by the agents."""


@contextmanager
def process_group(context: RankContext, backend: str) -> Iterator[None]:
    """Join the group of all ranks, on the rank's device where the backend uses it."""
    import torch

    device = torch.device(context.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with group.process_group(context, backend=backend, timeout=_GROUP_TIMEOUT):
        yield


def num_affordable(wanted: int, *, each_s: float, time_s: float) -> int:
    """Return how often to measure within a time: at least 3 times, where so often is wanted."""
    affordable = int(time_s / each_s) if each_s > 0 else wanted
    return min(wanted, max(_LEAST_TIMES, affordable))


class BenchmarkRank:
    """One rank's part of a benchmark, which the benchmarks extend. The first rank records."""

    def __init__(self, context: RankContext, *tables: CellTable) -> None:
        self.context = context
        self.is_stopping = False
        self._events: dict[str, list[Any]] = {kind: [] for kind in EVENT_TYPES}
        self._tables = {table.name: table for table in tables}
        for table in tables:
            self._write("table", table)

    def cells(self, table: str) -> list[TimedCell]:
        """Return the newest cells of a table, in the first rank."""
        result = self._result()
        tables = result.tables if result else []
        return [cell for each in tables if each.name == table for cell in each.cells]

    def measure_all(self, plan: Sequence[_Planned], measure: Callable[[_Planned], None]) -> None:
        """Measure what is planned, conclude, and leave if all ranks were asked to stop before."""
        done = 0
        for planned in plan:
            if self.should_stop():
                break
            measure(planned)
            if self.is_stopping:  # in its midst
                break
            done += 1
            self.context.progress.step(done)
        if self.context.rank == 0 and self._result() is not None:
            findings = self.find()
            self._write("findings", findings)
            for sentence in (*findings.conclusions, *findings.details):
                self.say(sentence)
        if done < len(plan):
            self.note(f"stopped when it was asked to, after {done} of {len(plan)} measurements")
            raise SystemExit(EXIT_STOPPED)

    def find(self) -> Findings:
        """Return what follows from the cells."""
        raise NotImplementedError

    def _result(self) -> BenchmarkSummary | None:
        return summarize(self._events)

    def record(self, cell: TimedCell) -> None:
        """Record what was measured, and print a line on it, once."""
        self._write("cell", cell)
        self.say(in_line(self._tables[cell.table], cell))

    def _write(self, kind: str, event: msgspec.Struct) -> None:
        if self.context.rank == 0:
            self._events[kind].append(event)
            self.context.events.write({"event": kind, **msgspec.to_builtins(event)})

    def say(self, message: str) -> None:
        """Print a line into the log of rank 0."""
        if self.context.rank == 0:
            self.context.say(message)

    def note(self, message: str) -> None:
        """Record a note for the summary, once."""
        if self.context.rank == 0:
            self.context.note(message)

    def should_stop(self) -> bool:
        """Return whether to leave before the next measurement; all ranks ask equally often."""
        if not self.is_stopping:
            self.is_stopping = self.context.progress.should_stop()
        return self.is_stopping

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank, in every rank."""
        import torch.distributed as dist

        values: list[Any] = [None] * self.context.world_size
        with self._waiting():
            dist.all_gather_object(values, value)
        return values

    def largest(self, value: float) -> float:
        """Wait for all ranks, and return the largest of their values."""
        import torch
        import torch.distributed as dist

        tensor = torch.tensor([value], dtype=torch.float64)
        with self._waiting():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor.item())

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Give signs of life while this rank only waits for others, which give their own.

        Without them the agent would take a long measurement of another rank for a hang of this one.
        """
        over = threading.Event()

        def give_signs() -> None:
            while not over.wait(_BEAT_S):
                self.context.progress.alive()

        beat = threading.Thread(target=give_signs, daemon=True)
        beat.start()
        try:
            yield
        finally:
            over.set()
            beat.join()
