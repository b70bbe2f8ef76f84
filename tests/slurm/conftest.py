"""A user of Slurm."""

import pytest
from cluster_user import User


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)
