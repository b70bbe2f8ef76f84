"""Runs a program of the table under torchrun and under hpcdist, and keeps what each run left."""

import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hpcdist.runs.run import Run

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 120.0
_END_S = 20.0


@dataclass(frozen=True)
class Outcome:
    """What is left of one run."""

    exit_code: int | None
    """Of the command; None: it had to be ended after the limit."""
    folder: Path
    """Where it ran: the program and what it wrote."""
    given: frozenset[str]
    """The files that were there before."""
    output: list[str]
    """What each rank wrote to stdout and stderr; torchrun keeps them apart, and so the order of
    lines says nothing."""
    told: str
    """What the command itself said."""


def run_both(zygote, row, place):
    """What both make of a row, run side by side in folders of their own; torchrun's first."""
    deadline_s = time.monotonic() + LIMIT_S * (3 if row.is_slow else 1)
    commands = {"torchrun": _torchrun_arguments, "hpcdist": _hpcdist_arguments}
    started = []
    for command, make_arguments in commands.items():
        folder = place / command / "work"
        given = _furnish(folder, row)
        arguments = make_arguments(row, folder.parent)
        call = (command, arguments, str(Path(sys.executable).parent))
        with (folder.parent / "told").open("ab") as told:
            child = zygote.call(
                *call,
                outputs=[told.fileno()] * 2,
                argv=(command, *arguments),
                cwd=folder,
                environment=_environment() | {"PWD": str(folder)},
            )
        started.append((child, folder, given))
    codes = [_exit_code(child, deadline_s) for child, _, _ in started]
    return [
        _outcome(command, row, exit_code=code, folder=folder, given=given)
        for command, code, (_, folder, given) in zip(commands, codes, started, strict=True)
    ]


def _exit_code(child, deadline_s):
    """Its exit code; None, and it is ended, where there is none in time."""
    code = child.wait(deadline_s - time.monotonic())
    if code is None:
        for signum in (signal.SIGTERM, signal.SIGKILL):
            os.kill(child.pid(), signum)
            if child.wait(_END_S) is not None:
                break
    return code


def _furnish(folder, row):
    """Copy the programs, and make what else the row needs; returns the names of all files."""
    shutil.copytree(PROGRAMS, folder)
    if row.prepare:
        row.prepare(folder)
    return frozenset(str(path.relative_to(folder)) for path in folder.rglob("*"))


def _environment():
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "COV_"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{inherited['PATH']}"
    of_all = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    return inherited | of_all | {"PATH": path}


_HOW = {"script": [], "module": ["-m"], "command": ["--no-python"]}


def _torchrun_arguments(row, place):
    options = ["--standalone", "--nproc-per-node", str(row.num_ranks)]
    options += ["--redirects", "3", "--log-dir", str(place / "logs")]
    return [*options, *_HOW[row.how], row.program, *row.arguments]


def _hpcdist_arguments(row, place):
    options = ["--gpus", str(row.num_ranks), "--local", "--runs", str(place / "runs")]
    options += ["--no-requeue", "--set", "launch.device=cpu"]
    return ["submit", *_HOW[row.how], row.program, *options, "--", *row.arguments]


def _outcome(command, row, **fields):
    place, ranks = fields["folder"].parent, range(row.num_ranks)
    if command == "torchrun":
        logs = [(place / "logs").glob(f"*/attempt_0/{rank}/std*.log") for rank in ranks]
    else:
        runs = [Run(spec.parent) for spec in (place / "runs").glob("*/spec.json")]
        logs = [[run.log_file(rank, 0) for run in runs] for rank in ranks]
    output = ["".join(map(_text, sorted(filter(Path.exists, files)))) for files in logs]
    return Outcome(**fields, output=output, told=_text(place / "told"))


def _text(path):
    return path.read_text(errors="replace")
