"""Agents that are forked from a process that has torch already."""

import contextlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hpcdist import submission
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job import LoadedJob
from hpcdist.run import Run
from hpcdist.schedulers import load_scheduler


@contextlib.contextmanager
def _zygote(lasting_process, *modules):
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("zygote.py")), *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    lasting_process(process.pid)
    process.stdout.readline()
    yield process
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


@pytest.fixture(scope="session")
def zygote(lasting_process):
    with _zygote(lasting_process) as process:
        yield process


@pytest.fixture(scope="session")
def zygote_with_lightning(lasting_process):
    with _zygote(lasting_process, "pytorch_lightning") as process:
        yield process


@pytest.fixture
def launch(zygote, launch_from):
    """Start a script with agents that have torch already; see `script_job` for the options."""
    return launch_from(zygote)


@pytest.fixture
def launch_from(tmp_path, script_job, launched_run):
    """Call it with a process that forks agents; see `launch`."""
    started = []

    def start(zygote, script, *args, agents=None, scheduler="local", **options):
        job = script_job(script, *args, **options)
        run = Run.create(tmp_path / "runs", job.name)
        plan = load_scheduler("local").plan(job, ClusterProfile())
        loaded = LoadedJob(job=job, source=str(script))
        submission.write_spec(run, loaded, scheduler=scheduler, plan=plan, command=[])

        def start_agent(node):
            zygote.stdin.write(os.fsencode(f"{run.path}\t{node}\0"))
            zygote.stdin.flush()

        for node in range(job.resources.nodes) if agents is None else agents:
            start_agent(node)
        started.append(launched_run(run, start_agent))
        return started[-1]

    yield lambda zygote: partial(start, zygote)
    for launched in started:
        launched.kill_agents()
