"""A sweep on this machine: its points one after the other, or a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from hpcdist.base.errors import HpcdistError
from hpcdist.base.polling import poll
from hpcdist.cluster.schedulers import LOCAL
from hpcdist.monitor.states import EndWatch, wait_until_gone
from hpcdist.runs.run import Run, delete_folder
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers import load_scheduler
from hpcdist.submission.layout import Job
from hpcdist.submission.submit import Submission


class PointEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one point."""

    index: int
    run: Run | None = None
    """None where it could not be started."""
    verdict: Verdict | None = None
    error: str | None = None
    """Why it could not be started."""


class LocalSweep:
    """Starts the runs of a sweep; a run's directory is made when it starts. A subclass shows what
    happens."""

    def __init__(self, submission: Submission, check: Callable[[], None] = lambda: None) -> None:
        """`check` may raise, which ends the sweep."""
        self._submission, self._check = submission, check
        self.planned = submission.planned

    def started(self, index: int, run: Run) -> None:
        """Show that a point has started."""

    def ended(self, end: PointEnd) -> None:
        """Show that a point has ended, or could not be started."""

    def end(self, running: Sequence[Run], why: BaseException) -> None:  # noqa: ARG002 - a default
        """End what runs, for this exception."""
        load_scheduler(LOCAL).cancel(running)

    def wait(self, running: Mapping[int, Run]) -> dict[int, Verdict]:
        """Wait until at least one of the runs has ended; return those that have."""
        watch = EndWatch(running.values())

        def look() -> dict[str, Verdict] | None:
            self._check()
            return watch.look() or None

        verdicts = poll(look, interval_s=0.1)
        ended = {index: run for index, run in running.items() if run.id in verdicts}
        for run in ended.values():
            wait_until_gone(run)
        return {index: verdicts[run.id] for index, run in ended.items()}

    def run_points(self) -> list[PointEnd]:
        """Run the points, so many at one time as the sweep's max_parallel says, or one.

        A point that fails does not stop the others. Once somebody cancels the sweep no more are
        started, and those are not among the ends. An exception ends what runs, and starts no more.
        """
        sweep, waiting = self.planned.sweep, self.planned.points_here()
        running: dict[int, Run] = {}
        gpus: dict[int, set[str]] = {}  # they may not look busy yet
        ends: dict[int, PointEnd] = {}
        try:
            while waiting or running:
                if sweep is not None and sweep.cancel_file.exists():
                    waiting.clear()
                while waiting and len(running) < (self.planned.max_parallel or 1):
                    index, run = waiting[0], self._submission.runs[waiting[0]]
                    try:
                        gpus[index] = self._start(index, set().union(*gpus.values()))
                    except HpcdistError as error:
                        if running:  # perhaps for want of what the others hold
                            break
                        ends[index] = PointEnd(index=index, error=error.message)
                        self.ended(ends[index])
                    else:
                        running[index] = run
                        self.started(index, run)
                    del waiting[0]
                for index, verdict in (self.wait(running) if running else {}).items():
                    ends[index] = PointEnd(index=index, run=running.pop(index), verdict=verdict)
                    del gpus[index]
                    self.ended(ends[index])
        except BaseException as error:
            if running:
                self.end([*running.values()], error)
            raise
        return [ends[index] for index in sorted(ends)]

    def _start(self, index: int, busy_gpus: set[str]) -> set[str]:
        """Start one point; return its GPUs, which are others than the busy ones."""
        planned, run = self.planned.plans[index].now(busy_gpus), self._submission.runs[index]
        job = Job(planned=planned, target=planned.target(run), points=[index])
        try:
            self._submission.make_runs(job)
            self._submission.hand_over(job)
        except BaseException:
            delete_folder(run.path)
            raise
        return {uuid for node in planned.plan.launch.nodes for uuid in node.gpus or []}
