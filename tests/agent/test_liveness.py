"""Agents that do nothing any more: who notices, when, and what is said of them."""

import os
import re
import signal
import socket
import threading
import time

import pytest

from hpcdist.agent.liveness import Heart, Liveness, beat_every_s
from hpcdist.agent.messages import TO_AGENT, Beat, Channel, ChannelClosedError

LIMIT_S = 600.0


class Watch:
    """What one agent sees of node 1's; it looks twice a second."""

    def __init__(self, limit_s=LIMIT_S):
        self.now_s = 5e5
        self.liveness = Liveness(limit_s, now_s=self.now_s)
        self.liveness.hear(1, Beat())
        self.lost = {}
        self.idle_s = 0.0

    def pass_time(self, seconds, *, where=None, hears=True, turns=True):
        """Let time go by, in which the other agent's thread and its loop go on, or do not."""
        for half_seconds in range(int(seconds * 2)):
            self.now_s += 0.5
            self.idle_s = 0.0 if turns else self.idle_s + 0.5
            if hears and half_seconds % 20 == 0:
                self.liveness.hear(1, Beat(idle_s=self.idle_s, where=where))
            self.lost |= self.liveness.look(self.now_s)


@pytest.fixture
def watch():
    return Watch()


def test_an_agent_whose_loop_turns_is_never_lost(watch):
    watch.pass_time(3600)
    assert watch.lost == {}


def test_an_agent_of_which_nothing_comes_is_lost_after_the_limit_and_named_once(watch):
    watch.pass_time(60)
    watch.pass_time(LIMIT_S - 20, hears=False)
    assert watch.lost == {}
    watch.pass_time(20, hears=False)
    assert "nothing was heard of it for 600 s" in watch.lost.pop(1)
    watch.pass_time(LIMIT_S, hears=False)
    assert watch.lost == {}


def test_an_agent_that_hangs_in_a_file_system_is_lost_after_the_limit_with_the_line(watch):
    watch.pass_time(60)
    watch.pass_time(LIMIT_S - 20, turns=False, where="runs/run.py:7 (read_verdict)")
    assert watch.lost == {}
    watch.pass_time(40, turns=False, where="runs/run.py:7 (read_verdict)")
    assert "its process lives, but has done nothing for 610 s" in watch.lost[1]
    assert "at runs/run.py:7 (read_verdict)" in watch.lost[1]


def test_a_file_server_that_is_away_for_some_minutes_loses_nobody(watch):
    for _ in range(3):
        watch.pass_time(60)
        watch.pass_time(300, turns=False)
    assert watch.lost == {}


def test_the_time_for_which_an_agent_was_suspended_itself_does_not_count(watch):
    watch.pass_time(60)
    watch.now_s += 7200  # suspended, or waiting with the others for the file server
    watch.pass_time(5, hears=False)
    watch.pass_time(3600)
    assert watch.lost == {}


def test_an_agent_whose_own_turns_take_long_still_loses_one_of_which_nothing_comes(watch):
    for _ in range(1000):
        watch.now_s += 30
        watch.lost |= watch.liveness.look(watch.now_s)
    assert set(watch.lost) == {1}


@pytest.mark.parametrize("limit_s", [0, LIMIT_S])
def test_nobody_is_lost_without_a_limit_or_who_has_left(limit_s):
    watch = Watch(limit_s)
    if limit_s:
        watch.liveness.end(1)
    watch.pass_time(3600, hears=False)
    assert watch.lost == {}


def test_a_thousand_agents_send_a_hundred_beats_a_second():
    assert beat_every_s(LIMIT_S) == 10
    assert beat_every_s(5) == 1


def test_a_heart_goes_on_where_the_loop_hangs_and_says_where():
    own, others = socket.socketpair()
    beats = []

    def hear(beat):
        beats.append(beat)
        if beat.where is not None:
            others.close()

    heart = Heart(0.1)
    heart.senders.append(hear)
    heart.turn()
    heart.start()
    with own, pytest.raises(ChannelClosedError, match="closed"):
        Channel(own, TO_AGENT).receive()
    heart.stop()
    assert beats[-1].idle_s > 0
    assert re.fullmatch(r"agent/messages\.py:\d+ \(receive\)", beats[-1].where)


def test_an_agent_of_which_one_loop_hangs_does_not_turn(monkeypatch):
    """As node 0's, which leads the run in a loop beside its own."""
    beats, may_go = [], threading.Event()
    heart = Heart(0.1)
    heart.senders.append(beats.append)

    def lead():
        heart.turn()
        may_go.wait(30)
        heart.leave()

    leader = threading.Thread(target=lead)
    leader.start()
    heart.start()

    def wait_for(condition):
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            heart.turn()
            time.sleep(0.01)

    wait_for(lambda: len(beats) > 5)
    assert beats[5].idle_s > beats[2].idle_s
    may_go.set()
    leader.join()
    wait_for(lambda: beats[-1].idle_s == 0)
    heart.stop()


SLEEPS = "import time; time.sleep(600)"


@pytest.fixture
def sleeping(launch, write_script):
    """Start a run on two nodes whose ranks sleep, and whose agents miss each other soon."""

    def start(**options):
        launched = launch(write_script(SLEEPS), nodes=2, agent_timeout_s=2, **options)
        for rank in range(2):
            launched.pid(rank)
        return launched

    return start


@pytest.mark.parametrize("node", [0, 1])
def test_an_agent_that_is_stopped_ends_the_run_with_its_name(sleeping, node):
    launched = sleeping()
    pid = launched.agent_pid(node)
    os.kill(pid, signal.SIGSTOP)
    try:
        verdict = launched.verdict()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (verdict.kind, verdict.node) == ("agent_lost", node)
    assert f"the agent of node {node}" in verdict.message
    assert "nothing was heard of it for" in verdict.message
    launched.wait(lambda: not launched.agents_alive())


def test_an_agent_that_hangs_in_a_file_ends_the_run_with_the_line(sleeping):
    launched = sleeping(change="stalled_agent:stall")
    pipe = launched.run.path / "stalled"
    os.mkfifo(pipe)
    try:
        verdict = launched.verdict()
    finally:
        pipe.write_bytes(b"")
        pipe.unlink()
    assert (verdict.kind, verdict.node) == ("agent_lost", 1)
    assert "the agent of node 1" in verdict.message
    assert "its process lives, but has done nothing for" in verdict.message
    assert re.search(r"at agent/member\.py:\d+ \(_turn\)", verdict.message)
    launched.wait(lambda: not launched.agents_alive())
