"""The scenarios on a real Slurm."""

import contextlib

import pytest
from cluster_user import User, job_id
from interruptions import hosts
from scenarios import *  # noqa: F403
from scenarios import Site

ACTIVE = {"PENDING", "RUNNING", "COMPLETING", "SUSPENDED"}


class SlurmSite(Site):
    def hosts(self, run):
        return hosts(self.user, run)

    def warn(self, run):
        """As before a time limit, at which Slurm looks every 30 s: see tests/slurm."""
        self.user.cluster.run("scancel", "--signal=USR2", job_id(run))

    def is_active(self, job):
        return self.user.cluster.job_state(job) in ACTIVE

    @contextlib.contextmanager
    def full(self):
        slurm = self.user.cluster
        job = slurm.submit("sleep 600", "--nodes=4", "--exclusive")
        slurm.wait_for_state(job, "RUNNING")
        yield
        slurm.run("scancel", job)

    def kill(self, run):
        self.user.cluster.run("scancel", job_id(run))

    @contextlib.contextmanager
    def doubled(self):
        yield
        (run,) = self.user.runs()
        first = job_id(run)
        words = ("sbatch", "--parsable", str(run.script_file))
        self.jobs = [first, self.user.cluster.run(*words, cwd=self.user.folder).stdout.strip()]

    def jobs_of(self, run):  # noqa: ARG002 - the only one
        return self.jobs


@pytest.fixture
def site(slurm, tmp_path):
    return SlurmSite(user=User(slurm, tmp_path), sees_gpus=True)
