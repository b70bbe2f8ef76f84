"""Agents that are forked from a process that has torch already."""

from functools import partial
from pathlib import Path

import pytest
from forked_agents import start_run
from forked_agents import zygote as make_zygote

from hpcdist.job import LoadedJob, load_job


@pytest.fixture(scope="session")
def zygote(lasting_process):
    with make_zygote(lasting_process) as process:
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


@pytest.fixture
def lack_memory(tmp_path, monkeypatch, launched_run):
    """Train a model for which there is no memory, with agents of this process, and look at what is
    told of it."""
    monkeypatch.chdir(Path(__file__).parents[1] / "support")

    def start(zygote, workload):
        model = ("model.name=hungry_model:Net", "model.args.width=5000000")
        loaded = load_job(workload, overrides=["launch.device=cpu", *model])
        change = "hungry_model:go_to_its_folder"
        launched = launched_run(*start_run(zygote, loaded, tmp_path / "runs", change=change))
        try:
            verdict = launched.verdict()
        finally:
            launched.kill_agents()
        assert verdict.kind == "out_of_memory", launched.everything_said()
        assert "out of memory: 1.28 GB were asked for, " in verdict.message
        assert "the model has 375,000,010 parameters: each rank makes it whole" in verdict.message

    return start
