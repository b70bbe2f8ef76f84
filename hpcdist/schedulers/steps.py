"""Runs that are steps of an allocation: no jobs of their own, but started by a process here.

The allocation is the user's, and stays whatever becomes of the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hpcdist.base.errors import JobError
from hpcdist.job.spec import JobSpec
from hpcdist.machine.process import ProcessId, identify, is_alive
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.schedulers.base import Condition


def is_step(run: Run) -> bool:
    """Return whether the run is a step in an allocation, and no job of its own."""
    return submission_of(run).step


def submission_of(run: Run) -> Submission:
    return run.read_submission() or Submission()


def start_script(script: str, *, log: Path, environment: Mapping[str, str]) -> ProcessId | None:
    """Start a script in the background.

    It has a session of its own, out of reach of the terminal's Ctrl-C: the agents end their ranks
    in order. None: it has ended already.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["/bin/bash", "-c", script],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # A program that goes on after submitting must not keep the ended script as a zombie.
    threading.Thread(target=process.wait, daemon=True).start()
    return identify(process.pid)


def signal_script(process: ProcessId, number: signal.Signals) -> None:
    """Send a signal to the script and to what it waits for; nothing where it has ended."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def check_gpus(job: JobSpec, gpus_per_node: int, where: str, *, how_to_get: str) -> None:
    """Raise JobError for GPUs that an allocation does not have; `where` names it."""
    wanted, device = job.resources.gpus, job.launch.device
    if device == "cuda" and gpus_per_node == 0:
        raise JobError(
            f"launch.device is cuda, but {where} has no GPU",
            hint=f"{how_to_get}, or use --set launch.device=cpu",
        )
    if device != "cpu" and 0 < gpus_per_node < wanted:
        raise JobError(
            f"resources.gpus is {wanted}, but {where} has {gpus_per_node} GPUs per node",
            hint="ask for fewer with --gpus, or run on its CPUs: --set launch.device=cpu",
        )


def conditions_of(
    runs: Sequence[Run],
    *,
    list_running: Callable[[Sequence[Run]], Container[str]],
    waits: Callable[[Run], str],
) -> dict[str, Condition]:
    """Return the condition by run id, from the process that starts the agents.

    `list_running` gives the ids of those that run among the runs whose process is on another host,
    and is called only where there are such; `waits` says why one has not started.
    """
    processes = {run.id: submission_of(run).process for run in runs}
    # None: its process is on another host.
    alive = {name: one is not None and is_alive(one) for name, one in processes.items()}
    elsewhere = [run for run in runs if alive[run.id] is None]
    running = list_running(elsewhere) if elsewhere else ()
    conditions: dict[str, Condition] = {}
    for run in runs:
        lives = alive[run.id]
        if not (run.id in running if lives is None else lives):
            conditions[run.id] = Condition(state="lost")
        elif run.has_started():
            conditions[run.id] = Condition(state="running")
        else:
            conditions[run.id] = Condition(state="pending", reason=waits(run))
    return conditions
