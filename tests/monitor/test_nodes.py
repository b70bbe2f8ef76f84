"""The nodes of a run that begins."""

import os

import pytest

from hpcdist.monitor.progress import awaited_nodes
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Beginning


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path, "job")


def written(path, time_s):
    path.touch()
    os.utime(path, (time_s, time_s))


def awaited(run):
    return awaited_nodes(run, num_nodes=4)


def test_status_names_the_nodes_that_have_not_joined_in_any_life(run):
    assert awaited(run) is None  # node 0 itself is not there yet
    written(run.meeting_file, 100)
    written(run.agent_file(0), 101)
    written(run.agent_file(2), 99)  # it has begun, and not joined
    assert awaited(run) == "the agents of nodes 1, 2 and 3 to join"
    for node in (1, 2, 3):
        written(run.agent_file(node), 102)
    assert awaited(run) is None
    begin = run.attempts_folder / "00000" / "begin.json"
    run.write_beginning(run.claim_attempt(), Beginning(life=0))
    written(begin, 103)
    written(run.meeting_file, 200)
    written(run.agent_file(0), 201)
    assert awaited(run) == "the agents of nodes 1, 2 and 3 to join"
    written(run.agent_file(3), 202)
    assert awaited(run) == "the agents of nodes 1 and 2 to join"
