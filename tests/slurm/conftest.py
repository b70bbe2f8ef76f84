"""The command on a real Slurm's login node."""

import sys

import pytest


@pytest.fixture
def hpcdist(tmp_path):
    """Calls the command on a cluster's login node, in the test's folder."""

    def call(cluster, *arguments, check=True, timeout=150):
        command = (sys.executable, "-m", "hpcdist", *arguments)
        return cluster.run(*command, cwd=tmp_path, check=check, timeout=timeout)

    return call
