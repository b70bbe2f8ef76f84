"""Runs that are steps of an allocation: no jobs of their own, but started by a process here.

The allocation is the user's, and stays whatever becomes of the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hpcdist.machine.process import ProcessId, identify
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission


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
