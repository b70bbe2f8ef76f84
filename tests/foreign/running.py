"""Runs a program of the table under torchrun and under hpcdist, and keeps what each run left."""

import contextlib
import itertools
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hpcdist.runs.run import Run

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 120.0
_END_S = 20.0
_POLL_S = 0.05
_ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):.*?rank +: (\d+) .*?exitcode +: (-?\d+)"
    r".*?traceback : (.*?)\s*=====",
    re.DOTALL,
)


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
    first_failure: tuple[int, int] | None
    """The rank that is said to have failed first, and its exit code; that of a signal is
    negative."""
    exception: str | None
    """The exception that is named as its reason; torchrun knows of none without @record."""
    told: str
    """What the command itself said."""


class Launchers:
    """The process that starts both."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("launchers.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._ids = itertools.count()
        self._codes = {}
        self._pids = {}
        self._unread = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def start(self, command, arguments, *, folder, environment, output, is_executed):
        """Returns the id of what was started."""
        number = next(self._ids)
        order = {
            "id": number,
            "command": command,
            "arguments": arguments,
            "folder": str(folder),
            "environment": environment,
            "output": str(output),
            "is_executed": is_executed,
        }
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        return number

    def exit_code(self, number, deadline_s):
        """Its exit code; None, and it is ended, where there is none in time."""
        if self._wait(number, deadline_s):
            return self._codes[number]
        for signum in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[number], signum)
            if self._wait(number, time.monotonic() + _END_S):
                break
        return None

    def interrupt(self, number, folder, row, deadline_s):
        """Send a command the row's signal when all of its ranks wait for it."""
        while len(list(folder.glob("waits-*"))) < row.num_ranks and time.monotonic() < deadline_s:
            self._wait(number, time.monotonic() + _POLL_S)
        os.kill(self._pids[number], signal.Signals[row.signal])

    def _wait(self, number, deadline_s):
        while number not in self._codes:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self.process.stdout], [], [], left_s)[0]:
                return False
            *lines, self._unread = (self._unread + self.process.stdout.read(1 << 16)).split(b"\n")
            for line in map(json.loads, lines):
                if "code" in line:
                    self._codes[line["id"]] = line["code"]
                elif "pid" in line:
                    self._pids[line["id"]] = line["pid"]
        return True


def run_both(launchers, row, place):
    """What both make of a row, run side by side in folders of their own; torchrun's first."""
    deadline_s = time.monotonic() + LIMIT_S * (3 if row.is_slow else 1)
    started = []
    for command in ("torchrun", "hpcdist"):
        folder = place / command / "work"
        given = _furnish(folder, row)
        make_arguments = {"torchrun": _torchrun_arguments, "hpcdist": _hpcdist_arguments}[command]
        number = launchers.start(
            command,
            make_arguments(row, folder.parent),
            folder=folder,
            environment=_environment(row) | {"PWD": str(folder)},
            output=folder.parent / "told",
            is_executed=row.is_executed,
        )
        started.append((number, folder, given))
    if row.signal:
        for number, folder, _ in started:
            launchers.interrupt(number, folder, row, deadline_s)
    codes = [launchers.exit_code(number, deadline_s) for number, _, _ in started]
    theirs, ours = (
        {"exit_code": code, "folder": folder, "given": given}
        for code, (_, folder, given) in zip(codes, started, strict=True)
    )
    return _torchrun_outcome(row, **theirs), _hpcdist_outcome(row, **ours)


def _furnish(folder, row):
    """Copy what the row needs; returns the names of all files."""
    folder.mkdir(parents=True)
    for name in row.files:
        source = PROGRAMS / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
    if row.prepare:
        row.prepare(folder)
    return frozenset(str(path.relative_to(folder)) for path in folder.rglob("*"))


def _environment(row):
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "COV_"))
    }
    bin_folder = str(Path(sys.executable).parent)
    found = inherited | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{bin_folder}{os.pathsep}{inherited['PATH']}",
    }
    found |= row.environment
    return {name: value for name, value in found.items() if value is not None}


def _torchrun_arguments(row, place):
    options = ["--standalone", "--nproc-per-node", str(row.num_ranks)]
    options += ["--redirects", "3", "--log-dir", str(place / "logs")]
    how = {"script": [], "module": ["-m"], "command": ["--no-python"]}[row.how]
    return [*options, *how, row.program, *row.arguments]


def _hpcdist_arguments(row, place):
    how = {"script": [], "module": ["-m"], "command": ["--no-python"]}[row.how]
    options = ["--gpus", str(row.num_ranks), "--local", "--runs", str(place / "runs")]
    options += ["--no-requeue", "--set", "launch.device=cpu"]
    return ["submit", *how, row.program, *options, "--", *row.arguments]


def _torchrun_outcome(row, *, exit_code, folder, given):
    told = (folder.parent / "told").read_text(errors="replace")
    cause = _ROOT_CAUSE.search(told)
    ranks = [
        sorted((folder.parent / "logs").glob(f"*/attempt_0/{rank}/std*.log"))
        for rank in range(row.num_ranks)
    ]
    return Outcome(
        exit_code=exit_code,
        folder=folder,
        given=given,
        output=["".join(file.read_text(errors="replace") for file in files) for files in ranks],
        first_failure=(int(cause[1]), int(cause[2])) if cause else None,
        exception=_last_line(cause[3]) if cause else None,
        told=told,
    )


def _hpcdist_outcome(row, *, exit_code, folder, given):
    paths = sorted((folder.parent / "runs").glob("*/spec.json"))
    run = Run(paths[0].parent) if paths else None
    logs = [run.log_file(rank, 0) for rank in range(row.num_ranks)] if run else []
    return Outcome(
        exit_code=exit_code,
        folder=folder,
        given=given,
        output=[file.read_text(errors="replace") if file.exists() else "" for file in logs],
        first_failure=_first_failure(run),
        exception=_exception(run),
        told=(folder.parent / "told").read_text(errors="replace"),
    )


def _first_failure(run):
    if run is None or not run.verdict_file.exists():
        return None
    verdict = run.read_verdict()
    if verdict.first is None:
        return None
    if verdict.first.signal is not None:
        return verdict.first.rank, -int(signal.Signals[verdict.first.signal])
    return verdict.first.rank, verdict.first.exit_code


def _exception(run):
    if run is None or not run.verdict_file.exists():
        return None
    verdict = run.read_verdict()
    if verdict.first is None or verdict.first.report.exception is None:
        return None
    report = verdict.first.report
    _, found, said = (report.traceback or "").rpartition(f"{report.exception}:")
    return f"{report.exception}: {said.strip() if found else ''}"


def _last_line(text):
    """Of a traceback; None where there is none."""
    return text.splitlines()[-1].strip() if text.startswith("Traceback") else None
