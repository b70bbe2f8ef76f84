"""The liveness of a run's agents: heartbeats between them, and who of them does nothing any more.

A thread of each agent sends beats to the other ends of its connections for as long as all loops of
the agent turn. Of one that is stopped, whose host has frozen, or that waits for a file system which
does not answer, nothing comes.

Only time in which a process runs itself counts, and no clock is compared with another's. When an
agent wakes up after a suspension, or after a file server that kept all of them waiting, the others
have as much time to show that they live as they ever had.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Collection
from typing import Any

from hpcdist.agent.messages import Beat, Channel, ChannelClosedError

_MOST_BETWEEN_BEATS_S = 10.0
_BEATS_PER_LIMIT = 5
"""So many may be late, or lost with a busy host, before anybody is missed."""
_LOOK_S = 0.5
_MOST_COUNTED_S = 2.0
"""Time between two looks that counts: in more the looking agent was suspended, or waited itself."""


def beat_every_s(limit_s: float) -> float:
    """Return the seconds between two beats where an agent is missed after `limit_s` without."""
    return min(_MOST_BETWEEN_BEATS_S, limit_s / _BEATS_PER_LIMIT)


class Liveness:
    """The agents at the other ends of connections, and who of them does nothing for too long."""

    def __init__(self, limit_s: float, *, now_s: float) -> None:
        """Miss an agent after `limit_s`; never where that is 0."""
        self._limit_s = limit_s
        self._looked_s = now_s
        self._own_s = 0.0
        """The time for which this agent has looked."""
        self._heard_s: dict[int, float] = {}

    def hear(self, node: int) -> None:
        """Take a beat of a node's agent, and expect more from now on."""
        self._heard_s[node] = self._own_s

    def end(self, node: int) -> None:
        """Expect nothing more of it."""
        self._heard_s.pop(node, None)

    def look(self, now_s: float) -> dict[int, str]:
        """Return the nodes whose agents count as lost, with the reason; they are named once.

        Call it with the monotonic clock, when all that has come was heard.
        """
        passed_s = now_s - self._looked_s
        if not self._limit_s or passed_s < min(_LOOK_S, self._limit_s / 4):
            return {}
        self._looked_s = now_s
        self._own_s += min(passed_s, _MOST_COUNTED_S, self._limit_s / 4)
        silent_s = {node: self._own_s - heard_s for node, heard_s in self._heard_s.items()}
        lost = [node for node in silent_s if silent_s[node] >= self._limit_s]
        for node in lost:
            self.end(node)
        return {
            node: f"nothing was heard of it for {silent_s[node]:.0f} s (is the process stopped, "
            "its host frozen, the network between cut, or does a file system not answer it?)"
            for node in lost
        }


class Heart:
    """The thread of an agent that sends its beats, as long as all of its loops turn."""

    def __init__(self, limit_s: float) -> None:
        """Send a beat every few seconds from `start` to `stop`; never where `limit_s` is 0."""
        self.channels: list[Collection[Channel[Any]]] = []
        """To the other agents. A lost one is noticed by its connection."""
        self._every_s = beat_every_s(limit_s)
        self._turns: dict[int, int] = {}
        """The number of turns of each loop, by its thread."""
        self._is_over = threading.Event()

    def turn(self) -> None:
        """Note that the loop of the calling thread has turned."""
        thread = threading.get_ident()
        self._turns[thread] = self._turns.get(thread, 0) + 1

    def leave(self) -> None:
        """Expect no more turns of the calling thread."""
        self._turns.pop(threading.get_ident(), None)

    def start(self) -> None:
        if self._every_s:
            threading.Thread(target=self._live, daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _live(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the agent's
        before: dict[int, int] = {}
        while not self._is_over.wait(self._every_s):
            turns = self._turns.copy()
            if all(before.get(one) != turn for one, turn in turns.items()):
                for channel in [one for several in self.channels for one in list(several)]:
                    with contextlib.suppress(ChannelClosedError):
                        channel.send(Beat())
            before = turns
