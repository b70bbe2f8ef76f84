"""Agents that do nothing any more: who notices, when, and what is said of them."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from hpcdist.agent.liveness import Heart, Liveness, beat_every_s

LIMIT_S = 600.0
LIMIT = 0.1
"""For tests with real threads."""


class Watch:
    """What one agent sees of node 1's; it looks twice a second."""

    def __init__(self, limit_s=LIMIT_S):
        self.now_s = 5e5
        self.liveness = Liveness(limit_s, now_s=self.now_s)
        self.liveness.hear(1)
        self.lost = {}

    def pass_time(self, seconds, *, hears=True):
        """Let time go by, in which the other agent's beats come, or do not."""
        for half_seconds in range(int(seconds * 2)):
            self.now_s += 0.5
            if hears and half_seconds % 20 == 0:
                self.liveness.hear(1)
            self.lost |= self.liveness.look(self.now_s)


@pytest.fixture
def watch():
    return Watch()


def test_an_agent_whose_beats_come_is_never_lost(watch):
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


def test_a_file_server_that_is_away_for_some_minutes_loses_nobody(watch):
    for _ in range(3):
        watch.pass_time(60)
        watch.pass_time(300, hears=False)
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


def test_an_agent_of_which_one_loop_hangs_sends_no_beats():
    """As node 0's, which leads the run in a loop beside its own."""
    beats, may_go = [], threading.Event()
    heart = Heart(LIMIT)
    heart.channels.append([SimpleNamespace(send=beats.append)])

    def lead():
        heart.turn()
        may_go.wait(30)
        heart.leave()

    leader = threading.Thread(target=lead)
    leader.start()
    heart.start()

    def turn_for(num_beats):
        """Turn until so many beats were sent, or for so long as ten would take."""
        begin_s = time.monotonic()
        while len(beats) < num_beats and time.monotonic() < begin_s + 10 * beat_every_s(LIMIT):
            heart.turn()
            time.sleep(0.001)
        return len(beats)

    assert turn_for(2) <= 1  # the first may come before it hangs
    may_go.set()
    leader.join()
    deadline = time.monotonic() + 30
    while turn_for(4) < 4:
        assert time.monotonic() < deadline
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


def test_an_agent_that_hangs_in_a_file_ends_the_run(sleeping):
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
    assert "does a file system not answer it?" in verdict.message
    launched.wait(lambda: not launched.agents_alive())
