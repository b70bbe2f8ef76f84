"""A user of PBS."""

import pytest
from cluster_user import User


@pytest.fixture
def user(pbs, pbs_folder):
    return User(pbs, pbs_folder, options=("--scheduler", "pbs"))
