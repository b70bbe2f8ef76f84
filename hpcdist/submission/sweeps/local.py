"""A sweep on this machine: its points one after the other, or a few at a time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from hpcdist.base.errors import HpcdistError
from hpcdist.monitor.states import EndWatch, wait_until_gone
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec
from hpcdist.runs.sweep import SubmittedJob, Sweep
from hpcdist.runs.verdict import Verdict
from hpcdist.submission.single import PlannedSubmission, describe, plan_now, surroundings_now
from hpcdist.submission.sweeps.plan import PlannedSweep, described_point

_POLL_S = 0.1


class PointEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one point."""

    index: int
    run: Path | None = None
    """Its run directory; None where it could not be started."""
    verdict: Verdict | None = None
    error: str | None = None
    """Why it could not be started."""


class Shown(Protocol):
    """Who is told of a sweep that goes on here."""

    def started(self, index: int, run: Run) -> None:
        """A point has started."""

    def ended(self, end: PointEnd) -> None:
        """A point has ended, or could not be started."""

    def wait(self, running: Mapping[int, Run]) -> dict[int, Verdict]:
        """Wait until at least one of the runs has ended; those that have.

        May raise to end the sweep.
        """


@dataclass(frozen=True, kw_only=True)
class LocalSweep:
    """Starts the runs of a sweep; a run's directory is made when it starts."""

    planned: PlannedSweep
    sweep: Sweep
    command: Sequence[str]
    created_s: float = field(default_factory=time.time)
    surroundings: RunSpec = field(default_factory=surroundings_now)
    started: list[Run] = field(default_factory=list)

    def start(self, index: int, busy_gpus: Collection[str]) -> tuple[Run, set[str]]:
        """Start one point; its run and its GPUs, which are others than the busy ones."""
        planned = plan_now(self.planned.runs[index], busy_gpus)
        run = self.sweep.run(index, len(self.planned.points))
        run.make()
        try:
            describe(
                run,
                planned,
                self.command,
                surroundings=self.surroundings,
                sweep=described_point(self.planned, self.sweep, index),
            )
            planned.hand_over(planned.target(run), [run])
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)
            raise
        self.started.append(run)
        self.write()
        return run, _gpus(planned)

    def write(self) -> None:
        """Write sweep.json."""
        self.sweep.write(
            {
                "created_s": self.created_s,
                "job": self.planned.name,
                "scheduler": self.planned.scheduler.name,
                "command": list(self.command),
                "num_points": len(self.planned.points),
                "max_parallel": self.planned.max_parallel,
                "jobs": [msgspec.to_builtins(_job_of(run)) for run in self.started],
                "summary_job_id": None,
            }
        )


def run_points(sweep: LocalSweep, shown: Shown) -> list[PointEnd]:
    """Run all points, so many at one time as the sweep's max_parallel says, or one.

    A point that fails does not stop the others. Once somebody cancels the sweep no more are
    started, and those are not among the ends. An exception that `shown` raises ends what runs,
    and starts no more.
    """
    waiting = list(range(len(sweep.planned.points)))
    running: dict[int, Run] = {}
    gpus: dict[int, set[str]] = {}
    ends: list[PointEnd] = []
    try:
        while waiting or running:
            if sweep.sweep.is_to_be_cancelled:
                waiting.clear()
            while waiting and len(running) < (sweep.planned.max_parallel or 1):
                index = waiting[0]
                try:
                    run, gpus[index] = sweep.start(index, set().union(*gpus.values()))
                except HpcdistError as error:
                    if running:  # perhaps for want of what the others hold
                        break
                    end = PointEnd(index=waiting.pop(0), error=error.message)
                    ends.append(end)
                    shown.ended(end)
                else:
                    running[waiting.pop(0)] = run
                    shown.started(index, run)
            for index, verdict in (shown.wait(running) if running else {}).items():
                end = PointEnd(index=index, run=running.pop(index).path, verdict=verdict)
                del gpus[index]
                ends.append(end)
                shown.ended(end)
    except BaseException:
        sweep.planned.scheduler.cancel(list(running.values()))
        raise
    return sorted(ends, key=lambda end: end.index)


class EndsHere:
    """Waits for the first end of several runs on this machine, and tells nobody."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._watches: dict[int, EndWatch] = {}

    def started(self, index: int, run: Run) -> None:
        """See Shown."""

    def ended(self, end: PointEnd) -> None:
        """See Shown."""

    def wait(self, running: Mapping[int, Run]) -> dict[int, Verdict]:
        """See Shown."""
        while True:
            self._check()
            found = {}
            for index, run in running.items():
                watch = self._watches.setdefault(index, EndWatch(run))
                if (verdict := watch.poll()) is not None:
                    wait_until_gone(run)
                    found[index] = verdict
            if found:
                return found
            time.sleep(_POLL_S)


def _job_of(run: Run) -> SubmittedJob:
    return SubmittedJob(name=run.id, job_id=str(run.read_job_id()), runs=[run.id])


def _gpus(planned: PlannedSubmission) -> set[str]:
    return {uuid for node in planned.plan.launch.nodes for uuid in node.gpus or []}
