"""Telling how a followed run begins: why it waits, and on which nodes it starts."""

from __future__ import annotations

import time

from hpcdist.monitor.follow.screen import Screen
from hpcdist.monitor.nodes import master_sentence, node_lines, seen_nodes
from hpcdist.runs.run import Run
from hpcdist.schedulers import runs_here
from hpcdist.schedulers.base import Condition

_A_DAY_S = 20 * 3600


class Beginning:
    """Says each reason to wait once, and then once where the run is."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._num_nodes = run.read_outline().resources.nodes or 1
        self._said: str | None = None
        self._is_over = runs_here(run.read_scheduler())  # its nodes are this machine

    def show(self, screen: Screen, condition: Condition) -> None:
        """Say what has become known since the last call."""
        if self._is_over:
            return
        nodes = [seen for seen in seen_nodes(self._run) if seen.master_addr is not None]
        if len(nodes) >= self._num_nodes:
            self._is_over = True
            listed = "; ".join(node_lines(nodes))
            screen.say(f"started on {listed}; MASTER_ADDR {master_sentence(nodes)}")
        elif (waiting := waiting_sentence(condition)) not in {None, self._said}:
            self._said = waiting
            screen.say(f"pending: {waiting}")


def waiting_sentence(condition: Condition) -> str | None:
    """Why a run waits, and until when as far as the scheduler knows; None where nothing is known,
    or it does not wait."""
    if condition.state != "pending":
        return None
    start = ""
    if condition.expected_start_s is not None:
        start = f"expected start {_clock(condition.expected_start_s)}"
    return ", ".join(text for text in (condition.reason, start) if text) or None


def _clock(time_s: float) -> str:
    """To the minute; with its date if that may not be today's."""
    pattern = "%H:%M" if abs(time_s - time.time()) < _A_DAY_S else "%Y-%m-%d %H:%M"
    return time.strftime(pattern, time.localtime(time_s))
