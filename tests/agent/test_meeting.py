"""How agents meet."""

import socket

import pytest
from meeting_host import MeetingHost, join_in_time, write_place

from hpcdist.agent import messages
from hpcdist.agent.meeting import join_meeting
from hpcdist.agent.node import CannotLaunchError
from hpcdist.runs.run import Run


@pytest.fixture
def host(tmp_path):
    host = MeetingHost(tmp_path)
    yield host
    host.close()


def test_an_agent_waits_past_the_place_of_one_that_is_gone(tmp_path):
    run = Run.create(tmp_path, "x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    write_place(run, port)
    asked = []
    joined = join_meeting(
        run,
        node_rank=1,
        num_nodes=2,
        source=None,
        timeout_s=30,
        give_up=lambda: len(asked) > 3 or asked.append(1),
    )
    assert joined is None
    with pytest.raises(CannotLaunchError, match=rf"127\.0\.0\.1 port {port}: .*refused"):
        join_in_time(run, timeout_s=0)


def test_a_node_that_comes_again_takes_the_place_of_its_former_connection(host):
    with host.serving():
        joined = join_in_time(host.run)
        first, second = joined.channel, join_in_time(host.run).channel
    assert abs(joined.clock_offset_s) < 60  # one clock
    second.send(messages.Failed(sentence="no"))
    host.turn_until(lambda: host.heard)
    assert (host.heard, host.lost) == ([(1, messages.Failed(sentence="no"))], [])
    host.meeting.send([1], messages.Pause())
    assert second.receive() == [messages.Pause()]
    first.close()
    second.close()
    host.turn_until(lambda: host.lost)
    assert host.lost == [1]
    host.meeting.send([1], messages.Close())  # nobody is there, which on_lost has told


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
