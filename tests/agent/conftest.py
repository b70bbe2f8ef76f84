"""Scripts by themselves, forked from a process that has torch, and ranks that are up."""

import pytest
from harness import start_script


@pytest.fixture
def run_script(tmp_path):
    """Run a script by itself in the test's folder, forked from this process; returns what it
    printed."""

    def start(zygote, script, *arguments, environment, code=0, limit_s=200):
        child = start_script(zygote, tmp_path, script, *arguments, environment=environment)
        ended = child.wait(limit_s)
        printed = (tmp_path / "output").read_text()
        assert ended == code, printed
        return printed

    return start


@pytest.fixture
def up():
    """Wait until so many ranks of a run have printed a word; returns the run."""

    def wait(launched, ranks, word="up", attempt=0):
        for rank in range(ranks):
            launched.wait(lambda rank=rank: word in launched.log(rank, attempt))
        return launched

    return wait
