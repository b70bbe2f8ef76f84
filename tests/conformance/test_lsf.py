"""The scenarios on a simulated LSF."""

import contextlib

import pytest
from cluster_user import User, job_id
from scenarios import *  # noqa: F403
from scenarios import Site


class LsfSite(Site):
    def hosts(self, run):
        return self.user.cluster.job(job_id(run)).hosts

    def warn(self, run):
        self.user.cluster.reach_limit(job_id(run))

    def is_active(self, job):
        return self.user.cluster.job_state(job) not in ("DONE", "EXIT")

    @contextlib.contextmanager
    def full(self):
        lsf = self.user.cluster
        job = lsf.submit("sleep 600", "-n", "16")
        lsf.wait_for_state(job, "RUN")
        yield
        lsf.run("bkill", job)
        lsf.wait_for_end(job)

    def kill(self, run):
        self.user.cluster.run("bkill", job_id(run))

    def doubled(self):
        """As by a bsub that asks again while the master hangs."""
        return self.user.cluster.resending(1)

    def jobs_of(self, run):
        return [job.id for job in self.user.cluster.jobs() if job.name == run.id]


@pytest.fixture
def site(lsf_like, tmp_path):
    """Host names resolve, and a test fails if the second signal of a kill is needed."""
    hosts = tuple(f"127.0.1.{number}" for number in range(1, 5))
    lsf = lsf_like(hosts=hosts)
    return LsfSite(user=User(lsf, tmp_path), sees_gpus=True)
