"""The entry of a job's script on every node: the agent, and after it what its run's end leaves.

A room of its own above all that a run needs: the agents need nothing of the summary, and what is
kept for it costs them an import only at the end.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcdist.agent import task
from hpcdist.runs.run import Run
from hpcdist.runs.untold import is_untold

if TYPE_CHECKING:
    from hpcdist.job.spec import JobSpec
    from hpcdist.notify import Teller
    from hpcdist.runs.verdict import Verdict
    from hpcdist.tracking import Trackers

_LEAST_BYTES = 128_000
"""Least size of events: to read less takes two milliseconds."""
_MOST_BYTES = 32_000_000
"""To read more takes seconds."""
_MOST_FILES = 256


def main() -> None:
    """Be the agent of this node; on the first one, keep the figures of the run and tell of its end;
    end with the exit code of the run. The scheduler's script calls this."""
    led = task.run_submitted(_Companions)
    if led is None:
        sys.exit(0)
    run, code = led
    keep_figures(run)
    _tell_end(run)
    # The scheduler must see a failed run as a failed job: dependencies count on it.
    sys.exit(code)


def main_here() -> None:
    """Be the agent of a node that is simulated on this machine; the local scheduler's script calls
    this. Who follows the run knows its exit code from the verdict, and its figures from the
    events."""
    led = task.run_submitted(_Companions, adopts=False)
    if led is not None:
        _tell_end(led[0])


def _tell_end(run: Run) -> None:
    if is_untold(run):
        from hpcdist.notify import tell_end  # with what asks schedulers

        tell_end(run)


class _Companions:
    """The processes beside the agent of the first node: those of trackers, and one that tells the
    user that the run seems to hang."""

    def __init__(self, run: Run, job: JobSpec, log: Callable[[str], None]) -> None:
        self._run = run
        self._log = log
        self._trackers: Trackers | None = None
        self._teller: Teller | None = None
        if job.record.track:
            from hpcdist.tracking import Trackers  # few jobs have any

            self._trackers = Trackers(run, job, log)

    @property
    def pids(self) -> list[int]:
        own = [self._teller.pid] if self._teller is not None else []
        return [*own, *(self._trackers.pids if self._trackers is not None else ())]

    def note_hang(self) -> None:
        """Have the user told, once in a life of the job."""
        try:
            if self._teller is None and is_untold(self._run):
                from hpcdist.notify import Teller

                self._teller = Teller(self._run)
        except Exception as error:  # noqa: BLE001 - the run goes on
            self._log(f"nobody is told of it: {error!r}")

    def end(self, verdict: Verdict | None, *, is_over: bool) -> None:
        if self._trackers is not None:
            self._trackers.end(verdict, is_over=is_over)
        if self._teller is not None:
            self._teller.wait()


def keep_figures(run: Run) -> None:
    """Keep the figures of a run beside it at its end, where its events are many enough for a reader
    to wait for, and few enough for the nodes not to."""
    if not run.verdict_file.exists() or len(places := run.event_files()) > _MOST_FILES:
        return
    with contextlib.suppress(Exception):  # a summary reads the events then
        num_bytes = sum(path.stat().st_size for *_, path in places)
        if _LEAST_BYTES <= num_bytes <= _MOST_BYTES:
            from hpcdist.summary import measuring  # 0.1 s, which small runs need not pay

            measuring.keep_figures(run)
