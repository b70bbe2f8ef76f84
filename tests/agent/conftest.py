"""Agents that are forked from a process that has torch already."""

import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked_agents import start_run, start_script
from forked_agents import zygote as make_zygote

from hpcdist.job import LoadedJob, load_job


@pytest.fixture(scope="session")
def torch_zygote(lasting_process):
    with make_zygote(lasting_process) as process:
        yield process


@pytest.fixture
def zygote(torch_zygote):
    return torch_zygote


OF_SCHEDULERS = {
    # sbatch --ntasks 2, seen from a step of one task per node
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    # jsrun, with a world of its own
    "LSB_JOBID": "5",
    "LSB_DJOB_RANKFILE": "/nonexistent",
    "JSM_NAMESPACE_RANK": "3",
    "JSM_NAMESPACE_LOCAL_RANK": "3",
    "JSM_NAMESPACE_SIZE": "9",
}


@pytest.fixture(scope="session")
def lightning_zygote(lasting_process):
    """Has Lightning already, which takes seconds to import, and imported it with these variables
    set, as on a cluster; its agents and ranks have them too."""
    packages = ("pytorch_lightning", "lightning", "accelerate")
    modules = [*filter(find_spec, packages), "sklearn.datasets"]
    with make_zygote(lasting_process, *modules, environment=OF_SCHEDULERS) as process:
        yield process


@pytest.fixture
def run_script(tmp_path):
    """Run a script by itself in the test's folder, forked from this process, without what a
    scheduler sets; returns what it printed."""

    def start(zygote, script, *arguments, environment, limit_s=200):
        removed = dict.fromkeys(OF_SCHEDULERS)
        start_script(zygote, tmp_path, script, *arguments, environment=removed | environment)
        code, deadline = tmp_path / "exit_code", time.monotonic() + limit_s
        while not code.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        printed = (tmp_path / "output").read_text()
        assert code.read_text() == "0", printed
        return printed

    return start


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
