"""Fixtures: agents that are forked from a process which has torch, or Lightning, already. All tests
of a test process share one of each."""

from functools import partial
from importlib.util import find_spec

import pytest
from forked_agents import start_run
from forked_agents import zygote as make_zygote

from hpcdist.job import LoadedJob


@pytest.fixture(scope="session")
def torch_zygote(lasting_process):
    with make_zygote(lasting_process, "known_before_fork") as process:
        yield process


@pytest.fixture
def zygote(torch_zygote):
    return torch_zygote


_OF_TRAININGS = ("torch._dynamo", "hpcdist.training.loop", "known_before_fork")
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
    modules = [*filter(find_spec, packages), "sklearn.datasets", *_OF_TRAININGS]
    with make_zygote(lasting_process, *modules, environment=OF_SCHEDULERS) as process:
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
