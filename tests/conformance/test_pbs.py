"""The scenarios on a PBS that is simulated, or a real one: see tests/pbs/pbs_cluster.py."""

import contextlib
import os
import shutil

import pytest
from cluster_user import User, job_id
from pbs_cluster import REAL, pid_outside
from scenarios import *  # noqa: F403
from scenarios import Site


class PbsSite(Site):
    def hosts(self, run):
        return self.user.cluster.hosts(job_id(run))

    def is_active(self, job):
        return self.user.cluster.jobs()[job]["job_state"] not in "FX"

    def process(self, run, pid):
        """Hosts that share this machine may number their processes by themselves."""
        return pid_outside(run.id, pid) if REAL else pid

    @contextlib.contextmanager
    def full(self):
        job = self.user.cluster.fill()
        self.user.cluster.wait_for(lambda: self.user.cluster.jobs()[job]["job_state"] == "R")
        yield
        self.user.cluster.run("qdel", job)

    def kill(self, run):
        self.user.cluster.run("qdel", job_id(run))

    @contextlib.contextmanager
    def doubled(self):
        """By a qsub that asks twice, and says what it was answered first."""
        program, second = self.user.folder / "bin" / "qsub", self.user.folder / "second"
        program.parent.mkdir()
        asks = f'{shutil.which("qsub")} "$@"'
        program.write_text(f"#!/bin/sh\n{asks} && {asks} > {second}\n")
        program.chmod(0o700)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
            yield
        (run,) = self.user.runs()
        self.jobs = [job_id(run), second.read_text().partition(".")[0]]

    def jobs_of(self, run):  # noqa: ARG002 - the only one
        return self.jobs


@pytest.fixture
def site(pbs, pbs_folder):
    """Nobody but the agents' own clock warns of a limit. The ranks have 9 s to begin."""
    user = User(pbs, pbs_folder, options=("--scheduler", "pbs"))
    no_arrays = "a sweep is a job per run: PBS cannot wait for one job of an array"
    cannot = {
        "test_a_sweep_is_an_array_per_shape_and_its_worst_end_counts": no_arrays,
        "test_elements_of_an_array_are_requeued_and_cancelled_by_themselves": no_arrays,
        "test_a_node_that_was_lost_in_two_runs_is_left_out": "select cannot say so",
    }
    brought = r"environment\.sh|\d+_host\.sh"
    limit = ("--time", "0.2")
    return PbsSite(user=user, cannot=cannot, limit=limit, secret_files=brought)
