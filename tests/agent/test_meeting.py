"""How agents meet."""

import pytest
from meeting_host import MeetingHost, join_in_time

from hpcdist.agent.node import CannotLaunchError


@pytest.fixture
def host(tmp_path):
    host = MeetingHost(tmp_path)
    yield host
    host.close()


def test_an_agent_goes_past_the_place_of_a_former_life_also_where_that_still_answers(tmp_path):
    """As where the scheduler's daemons died, and with them nothing of the job."""
    former = MeetingHost(tmp_path / "former", life=0)
    run = former.run
    still_there = pytest.raises(CannotLaunchError, match="start 1 of the job is still there, and")
    with former.serving(), still_there:
        join_in_time(run, timeout_s=0, life=1)
    assert former.num_members == 0
    current = MeetingHost(tmp_path / "current", life=1)
    current.run.meeting_file.rename(run.meeting_file)
    with current.serving():
        assert join_in_time(run, life=0) is None  # it leaves the run to the later one
        join_in_time(run, life=1).channel.close()
    former.close()
    current.close()


def test_an_agent_that_says_nothing_is_lost(tmp_path):
    host = MeetingHost(tmp_path, agent_timeout_s=0.2)
    with host.serving():
        channel = join_in_time(host.run).channel
    host.turn_until(lambda: host.lost)
    assert (host.lost, host.num_members) == ([1], 0)
    channel.close()
    host.close()
