"""Runs that are steps of an allocation: what state they are in, and ending them.

The allocation is the user's, and stays whatever becomes of the run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import CommandFailedError, run_command
from hpcdist.machine.process import ProcessId, is_alive
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.schedulers.base import Condition
from hpcdist.schedulers.slurm.queue import TIMEOUT_S, scancel

_POLL_S = 0.5
_GONE_LIMIT_S = 180.0
_KILL_AFTER_S = 10.0


def is_step(run: Run) -> bool:
    """Whether the run is a step in an allocation, and no job of its own."""
    return (run.read_submission() or Submission()).step


def step_conditions(runs: Sequence[Run]) -> dict[str, Condition]:
    """Condition by run id, from the process that runs srun; of other hosts' from squeue.

    Raises SchedulerError where squeue is needed and does not answer.
    """
    alive = {run.id: _is_alive(run) for run in runs}
    elsewhere = {run.id for run in runs if alive[run.id] is None}
    steps = _steps() if elsewhere else {}
    return {
        run.id: _condition(run, run.id in steps if run.id in elsewhere else bool(alive[run.id]))
        for run in runs
    }


def cancel_step(run: Run) -> None:
    """End the run's step, and wait until nothing of it is left.

    Raises SchedulerError where Slurm does not answer, or the step does not end.
    """
    begin_s = time.monotonic()
    asked: set[str] = set()
    while (step := _steps().get(run.id)) is not None or _is_alive(run):
        waited_s = time.monotonic() - begin_s
        if step is not None and step not in asked:
            asked.add(step)
            _scancel(step)
        elif step is None:  # srun waits for room, or has nothing left to wait for
            _signal_group(run, signal.SIGTERM if waited_s < _KILL_AFTER_S else signal.SIGKILL)
        if waited_s > _GONE_LIMIT_S:
            raise SchedulerError(
                f"step {step or 'of the run'} has not ended within {_GONE_LIMIT_S:g} s",
                hint="its nodes may be down; see: squeue --steps",
            )
        time.sleep(_POLL_S)


def _condition(run: Run, lives: bool) -> Condition:  # noqa: FBT001 - one of two facts about a run
    if not lives:
        return Condition(state="lost")
    if any(run.launch_folder.glob("agent-*.json")):
        return Condition(state="running")
    return Condition(
        state="pending",
        reason=f"its step starts, or waits for room in allocation {run.read_job_id()}",
    )


def _is_alive(run: Run) -> bool | None:
    """Of the process that runs srun; None where it is on another host."""
    process = _process(run)
    return False if process is None else is_alive(process)


def _process(run: Run) -> ProcessId | None:
    """The one that runs srun."""
    return (run.read_submission() or Submission()).process


def _steps() -> dict[str, str]:
    """The running steps of this user: id by name, which for runs is theirs."""
    argv = ["squeue", "--steps", "--me", "--noheader", "--format=%i|%j"]
    rows = (
        line.strip().split("|", 1)
        for line in run_command(argv, timeout_s=TIMEOUT_S).stdout.splitlines()
    )
    return {row[1]: row[0] for row in rows if len(row) == 2}


def _scancel(step: str) -> None:
    try:
        scancel([step])
    except CommandFailedError:
        return  # it has ended by itself; the caller looks again


def _signal_group(run: Run, number: int) -> None:
    process = _process(run)
    if process is not None and is_alive(process):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return  # it ended a moment ago
