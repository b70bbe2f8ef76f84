"""The liveness of a run's agents: heartbeats between them, and who of them does nothing any more.

A thread of each agent tells the other ends of its connections for how long a loop of the agent has
not turned. The thread goes on while a loop waits for a file system that does not answer, and then
says where the loop waits; of an agent that is stopped, or whose host has frozen, nothing comes.

Only time in which a process runs itself counts, and no clock is compared with another's. When an
agent wakes up after a suspension, or after a file server that kept all of them waiting, the others
have as much time to show that they live as they ever had.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from hpcdist.agent.messages import Beat

_MOST_BETWEEN_BEATS_S = 10.0
_BEATS_PER_LIMIT = 5
"""So many may be late, or lost with a busy host, before anybody is missed."""
_LOOK_S = 0.5
_MOST_COUNTED_S = 2.0
"""Time between two looks that counts: in more the looking agent was suspended, or waited itself."""
_OWN_CODE = str(Path(__file__).parents[1])


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
        self._heard: dict[int, tuple[float, Beat]] = {}

    def hear(self, node: int, beat: Beat) -> None:
        """Take a beat of a node's agent, and expect more from now on."""
        self._heard[node] = (self._own_s, beat)

    def end(self, node: int) -> None:
        """Expect nothing more of it."""
        self._heard.pop(node, None)

    def look(self, now_s: float) -> dict[int, str]:
        """Return the nodes whose agents count as lost, with the reason; they are named once.

        Call it with the monotonic clock, when all that has come was heard.
        """
        passed_s = now_s - self._looked_s
        if not self._limit_s or passed_s < min(_LOOK_S, self._limit_s / 4):
            return {}
        self._looked_s = now_s
        self._own_s += min(passed_s, _MOST_COUNTED_S, self._limit_s / 4)
        lost = {}
        for node, (heard_s, beat) in list(self._heard.items()):
            silent_s = self._own_s - heard_s
            if silent_s >= self._limit_s:
                lost[node] = (
                    f"nothing was heard of it for {silent_s:.0f} s (is the process stopped, its "
                    "host frozen, or the network between cut?)"
                )
            elif beat.idle_s >= self._limit_s:
                lost[node] = (
                    f"its process lives, but has done nothing for {beat.idle_s:.0f} s, at "
                    f"{beat.where} (does a file system not answer there?)"
                )
            if node in lost:
                self.end(node)
        return lost


class Heart:
    """The thread of an agent that sends its beats, for all of its loops."""

    def __init__(self, limit_s: float) -> None:
        """Send a beat every few seconds from `start` to `stop`; never where `limit_s` is 0."""
        self.senders: list[Callable[[Beat], None]] = []
        """They take each beat. They must not fail, and may wait."""
        self._every_s = beat_every_s(limit_s)
        self._turns: dict[int, int] = {}
        """Of each loop, by its thread."""
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
        num_idle: dict[int, int] = {}  # beats for which each loop has not turned
        while not self._is_over.wait(self._every_s):
            turns = self._turns.copy()
            for one, turn in turns.items():
                num_idle[one] = num_idle.get(one, 0) + 1 if before.get(one) == turn else 0
            before, beat = turns, Beat()
            idlest = max(turns, key=num_idle.__getitem__, default=0)
            if num := num_idle.get(idlest):
                frame = sys._current_frames().get(idlest)  # noqa: SLF001 - it is documented
                beat = Beat(idle_s=num * self._every_s, where=_own_line(frame))
            for send in list(self.senders):
                send(beat)


def _own_line(frame: FrameType | None) -> str | None:
    """Return the innermost line of hpcdist in a stack."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_OWN_CODE):
            file = Path(code.co_filename).relative_to(_OWN_CODE)
            return f"{file}:{frame.f_lineno} ({code.co_name})"
        frame = frame.f_back
    return None
