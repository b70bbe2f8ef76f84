"""Agents that are forked from a process that has torch already."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdist import submission
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job import LoadedJob
from hpcdist.run import Run
from hpcdist.schedulers import load_scheduler


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
def launch(zygote, tmp_path, script_job, launched_run):
    """Start a script with agents that have torch already; see `script_job` for the options."""
    started = []

    def start(script, *args, agents=None, scheduler="local", **options):
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

    yield start
    for launched in started:
        launched.kill_agents()
