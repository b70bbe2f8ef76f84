"""Starts runs: through submitit, or with agents forked from a process that has torch already."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from hpcdist import submission
from hpcdist.events import read_events
from hpcdist.job import LoadedJob
from hpcdist.run import Run
from hpcdist.schedulers import Plan, load_scheduler
from hpcdist.spec import Launch, Resources, ScriptJob

_LIMIT_S = 30.0


@dataclass
class LaunchedRun:
    """A run that goes on, and what it leaves."""

    run: Run
    start_agent: Callable[[int], None] | None = None

    def verdict(self, limit_s=_LIMIT_S):
        """The verdict, when it is there."""
        self.wait(self.run.verdict_file.exists, limit_s)
        return self.run.read_verdict()

    def wait(self, condition, limit_s=_LIMIT_S):
        deadline = time.monotonic() + limit_s
        while not (value := condition()):
            if time.monotonic() > deadline:
                pytest.fail(f"did not come true within {limit_s} s\n{self.everything_said()}")
            time.sleep(0.005)
        return value

    def log(self, rank, attempt=0):
        try:
            return self.run.log_file(rank, attempt).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def logs(self):
        return [self.log(rank, attempt) for rank, attempt, _ in self.run.log_files()]

    def said(self, rank, attempt=0):
        """What a rank printed as JSON, one object per line."""
        return [json.loads(line) for line in self.log(rank, attempt).splitlines()]

    def events(self, rank, attempt=0):
        return read_events(self.run.event_file(rank, attempt)).events

    def pid(self, rank, attempt=0):
        """Of a rank, once it has started."""
        file = self.run.event_file(rank, attempt)
        return self.wait(lambda: file.exists() and read_events(file).events)[0]["pid"]

    def agent_pid(self, node):
        value = self.wait(lambda: _read(self.run.agent_file(node)))
        return value["process"]["pid"]

    def agents_alive(self):
        files = self.run.launch_folder.glob("agent-*.json")
        return any(Path(f"/proc/{_read(file)['process']['pid']}").exists() for file in files)

    def everything_said(self):
        folders = (self.run.submitit_folder, self.run.logs_folder)
        files = [file for folder in folders for file in sorted(folder.glob("*.[lo][ou][gt]"))]
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')}" for file in files)

    def seconds_to_verdict(self, failed_s):
        return self.run.verdict_file.stat().st_mtime - failed_s


def _read(path):
    return json.loads(path.read_text()) if path.exists() else None


def make_job(script, *args, nodes=1, gpus=1, **options):
    """A script job; `options` are keys of `resources` and of `launch`."""
    names = {field.name for field in msgspec.structs.fields(Resources)}
    resources = {key: value for key, value in options.items() if key in names}
    launch = {key: value for key, value in options.items() if key not in names}
    return ScriptJob(
        name=Path(script).stem,
        script=str(script),
        args=[str(arg) for arg in args],
        resources=Resources(nodes=nodes, gpus=gpus, **resources),
        launch=Launch(device="cpu", **launch),
    )


@pytest.fixture
def write_script(tmp_path):
    """Write a script into the test's folder; returns its path."""

    def write(text, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="session")
def zygote(lasting_process):
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("zygote.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    lasting_process(process.pid)
    process.stdout.readline()
    yield process
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


@pytest.fixture
def launch(zygote, tmp_path):
    """Start a script with agents that have torch already; see `make_job` for the options."""
    started = []

    def start(script, *args, agents=None, **options):
        job = make_job(script, *args, **options)
        run = Run.create(tmp_path / "runs", job.name)
        plan = load_scheduler("local").plan(job, run)
        loaded = LoadedJob(job=job, source=str(script))
        submission.write_spec(run, loaded, plan=Plan(script="", details=plan.details), command=[])

        def start_agent(node):
            zygote.stdin.write(os.fsencode(f"{run.path}\t{node}\0"))
            zygote.stdin.flush()

        for node in range(job.resources.nodes) if agents is None else agents:
            start_agent(node)
        started.append(LaunchedRun(run, start_agent))
        return started[-1]

    yield start
    for launched in started:
        _kill_agents(launched.run)


@pytest.fixture
def submit(tmp_path):
    """Submit a script as the command does, through submitit."""
    started = []

    def start(script, *args, **options):
        job = make_job(script, *args, **options)
        run = submission.submit(
            LoadedJob(job=job, source=str(script)),
            scheduler="local",
            runs=tmp_path / "runs",
            command=["hpcdist", "submit", str(script)],
        )
        started.append(LaunchedRun(run))
        return started[-1]

    yield start
    for launched in started:
        _kill_agents(launched.run)


def _kill_agents(run):
    """After a test that failed half way; with the agents go their ranks."""
    for file in run.launch_folder.glob("agent-*.json"):
        process = (_read(file) or {}).get("process") or {}
        if "pid" in process and not run.verdict_file.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process["pid"], signal.SIGKILL)
