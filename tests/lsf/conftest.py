"""Users of simulated LSF sites."""

import pytest
from cluster_user import User


@pytest.fixture
def user(lsf_like, tmp_path):
    """Of a site that leaves so much time after a signal that a test fails if the next is needed."""
    return User(lsf_like(kill_interval_s=60.0, limit_grace_s=60.0), tmp_path)
