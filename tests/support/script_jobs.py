"""A job as the tests of schedulers' scripts ask for it, and where its run is."""

from pathlib import Path

from hpcdist.job.spec import Launch, Resources, ScriptJob
from hpcdist.schedulers.base import Target


def job(*, launch=None, **resources):
    return ScriptJob(
        name="train",
        script="/home/ann/train.py",
        resources=Resources(**resources),
        launch=Launch(**(launch or {})),
    )


def target(folder="/scratch/ann/my runs/RUN", **options):
    environment = {"HPCDIST_SUBMIT_DIR": "/home/ann/project"}
    return Target(
        name="RUN",
        folder=Path(folder),
        cwd="/home/ann/project",
        **{"environment": environment} | options,
    )
