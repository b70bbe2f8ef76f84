"""Ranks that are up."""

import pytest


@pytest.fixture
def up():
    """Wait until so many ranks of a run have printed a word; returns the run."""

    def wait(launched, ranks, word="up"):
        for rank in range(ranks):
            launched.wait(lambda rank=rank: word in launched.log(rank))
        return launched

    return wait
