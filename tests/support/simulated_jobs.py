"""Runs of the jobs that come with hpcdist, on simulated nodes."""

import pytest
from forked_agents import start_run, zygote

from hpcdist.job import load_job
from hpcdist.job.load import Flag
from hpcdist.workloads import load_workload

_OF_THE_JOBS = (
    "torchvision.transforms.v2",
    "matplotlib.figure",
    "hpcdist.bench.allreduce.workload",
    "hpcdist.bench.dataload.workload",
    "hpcdist.bench.inference.workload",
)


@pytest.fixture(scope="session")
def forking(lasting_process):
    with zygote(lasting_process, *_OF_THE_JOBS) as process:
        yield process


@pytest.fixture
def submit_job(tmp_path, launched_run, forking):
    """Start a job by name on CPUs; `overrides` are as of --set, `change` as of start_run."""
    started = []

    def submit(name, *overrides, nodes=1, gpus=1, change=""):
        flags = {"resources.nodes": nodes, "resources.gpus": gpus, "launch.device": "cpu"}
        loaded = load_job(
            name,
            flags={key: Flag(name=key, value=value) for key, value in flags.items()},
            overrides=list(overrides),
        )
        load_workload(loaded.job).check()
        started.append(launched_run(*start_run(forking, loaded, tmp_path / "runs", change=change)))
        return started[-1]

    yield submit
    for launched in started:
        launched.kill_agents()
