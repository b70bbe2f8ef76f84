"""Agents that are forked from a process that has torch already."""

from functools import partial

import pytest
from forked_agents import start_run
from forked_agents import zygote as make_zygote

from hpcdist.job import LoadedJob


@pytest.fixture(scope="session")
def zygote(lasting_process):
    with make_zygote(lasting_process) as process:
        yield process


@pytest.fixture(scope="session")
def zygote_with_lightning(lasting_process):
    with make_zygote(lasting_process, "pytorch_lightning") as process:
        yield process


@pytest.fixture
def launch(zygote, launch_from):
    """Start a script with agents that have torch already; see `script_job` for the options."""
    return launch_from(zygote)


@pytest.fixture
def launch_from(tmp_path, script_job, launched_run):
    """Call it with a process that forks agents; see `launch`."""
    started = []

    def start(zygote, script, *args, agents=None, scheduler="local", change="", **options):
        loaded = LoadedJob(job=script_job(script, *args, **options), source=str(script))
        found = start_run(
            zygote, loaded, tmp_path / "runs", agents=agents, scheduler=scheduler, change=change
        )
        started.append(launched_run(*found))
        return started[-1]

    yield lambda zygote: partial(start, zygote)
    for launched in started:
        launched.kill_agents()
