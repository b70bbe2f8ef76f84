"""The ranks of a benchmark: their group, what they exchange and report, and how they stop."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from hpcdist.base import files
from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.rank.context import RankContext
from hpcdist.training import group

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    """One rank's part of a benchmark, which the benchmarks extend."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self._is_stopping = False

    def measure_all(
        self,
        plan: Sequence[_Planned],
        measure: Callable[[_Planned], bool],
        *,
        conclude: Callable[[], None] = lambda: None,
    ) -> None:
        """Measure what is planned, conclude, and leave where all ranks were asked to stop before.

        `measure` returns, in all ranks alike, whether it measured as much as planned. The plan may
        grow meanwhile.
        """
        done = 0
        for planned in plan:
            if self.should_stop():
                break
            if not measure(planned):
                while not self.should_stop():  # the boundary where all stop
                    pass
                break
            done += 1
            self.context.progress.step(done)
        conclude()
        if done < len(plan):
            message = f"stopped when it was asked to, after {done} of {len(plan)} measurements"
            self.report("note", message, {"message": message})
            raise SystemExit(EXIT_STOPPED)

    def say(self, message: str) -> None:
        """Print a line into the log of rank 0."""
        if self.context.rank == 0:
            self.context.say(message)

    def note(self, message: str) -> None:
        """Record a note for the summary, once."""
        if self.context.rank == 0:
            self.context.note(message)

    def report(self, kind: str, line: str, fields: dict[str, Any]) -> None:
        """Record an event and print a line on it, once."""
        if self.context.rank == 0:
            self.context.events.write({"event": kind, **fields})
            self.context.say(line)

    def conclude(
        self,
        sentences: Iterable[str],
        plot_name: str,
        title: str,
        draw: Callable[[], Figure],
        *,
        more: str = "",
    ) -> None:
        """Print sentences on what was measured, and draw it, in rank 0; `more` ends the note."""
        for sentence in sentences:
            self.say(sentence)
        if self.context.rank == 0 and self.context.is_current():
            from hpcdist.base import plotting

            run = self.context.run
            place = f"{run.id}, on {socket.gethostname()}, {time.strftime('%Y-%m-%d')}"

            def draw_titled() -> Figure:
                figure = draw()
                plotting.title(figure, title, place)
                return figure

            picture = plotting.Picture(plot_name, title, "", draw_titled)
            png = plotting.render(picture, with_svg=False).png
            files.write_whole(run.path / plot_name, png)
            self.note(f"plot with error bars: {plot_name} in the run directory{more}")

    def alive(self) -> None:
        """Show the agent that the rank makes progress."""
        self.context.progress.alive()

    def should_stop(self) -> bool:
        """Return whether to leave before the next measurement; all ranks ask equally often."""
        if not self._is_stopping:
            self._is_stopping = self.context.progress.should_stop()
        return self._is_stopping

    def is_asked_to_stop(self) -> bool:
        """Return whether to cut a measurement short. Ranks learn it at different moments, and those
        that measure together have to agree."""
        return self.context.progress.is_asked_to_stop()

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
                self.alive()

        beat = threading.Thread(target=give_signs, daemon=True)
        beat.start()
        try:
            yield
        finally:
            over.set()
            beat.join()
