"""Agents that do nothing any more: who notices, when, and what is said of them."""

import os
import signal

import pytest

from hpcdist.agent.meeting import Liveness

LIMIT_S = 600.0


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


def test_an_agent_of_which_nothing_comes_is_lost_after_the_limit_and_named_once():
    watch = Watch()
    watch.pass_time(60)
    watch.pass_time(LIMIT_S - 20, hears=False)
    assert watch.lost == {}
    watch.pass_time(20, hears=False)
    assert "nothing was heard of it for 600 s" in watch.lost.pop(1)
    watch.pass_time(LIMIT_S, hears=False)
    assert watch.lost == {}


def test_a_file_server_that_is_away_for_some_minutes_loses_nobody():
    watch = Watch()
    for _ in range(3):
        watch.pass_time(60)
        watch.pass_time(300, hears=False)
    watch.now_s += 7200  # it was suspended itself, or waited with the others for the file server
    watch.pass_time(5, hears=False)
    watch.pass_time(3600)
    assert watch.lost == {}


def test_an_agent_whose_own_turns_take_long_still_loses_one_of_which_nothing_comes():
    watch = Watch()
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


def test_the_first_nodes_agent_that_is_stopped_ends_the_run_with_its_name(launch, write_script):
    script = write_script("import time; time.sleep(600)")
    launched = launch(script, nodes=2, agent_timeout_s=2)
    for rank in range(2):
        launched.pid(rank)
    pid = launched.agent_pid(0)
    os.kill(pid, signal.SIGSTOP)
    try:
        verdict = launched.verdict()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (verdict.kind, verdict.node) == ("agent_lost", 0)
    assert "nothing was heard of it for" in verdict.message
    launched.wait(lambda: not launched.agents_alive())
