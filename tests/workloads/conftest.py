"""Runs of the jobs that come with hpcdist, on simulated nodes."""

import pytest

from hpcdist import submission
from hpcdist.job import load_job
from hpcdist.job.load import Flag


@pytest.fixture
def submit_job(tmp_path, launched_run):
    """Submit a job by name on CPUs; `overrides` are as of --set."""
    started = []

    def submit(name, *overrides, nodes=1, gpus=1):
        flags = {"resources.nodes": nodes, "resources.gpus": gpus, "launch.device": "cpu"}
        loaded = load_job(
            name,
            flags={key: Flag(name=key, value=value) for key, value in flags.items()},
            overrides=list(overrides),
        )
        planned = submission.plan_submission(loaded, scheduler="local")
        run = submission.submit(planned, runs=tmp_path / "runs", command=["test"]).run
        started.append(launched_run(run))
        return started[-1]

    yield submit
    for launched in started:
        launched.kill_agents()
