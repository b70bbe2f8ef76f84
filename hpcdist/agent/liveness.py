"""The liveness of a run's agents: heartbeats between them, and who of them does nothing any more.

A thread of each agent tells the other ends of its connections how often the agent's loops have
turned. The thread goes on while a loop waits for a file system that does not answer, and then says
where the loop waits; of an agent that is stopped, or whose host has frozen, nothing comes.

Nobody's clock is compared with another's. An agent sees that the other's number of turns has
changed, and counts the time since then by its own monotonic clock, and of that only the time for
which it was looking itself: when it wakes up after a suspension, or after a file server that kept
all agents waiting, the others have as much time to show that they live as they ever had.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from hpcdist.agent.messages import Beat

_MOST_BETWEEN_BEATS_S = 10.0
_BEATS_PER_LIMIT = 5
"""So many may be late, or lost with a busy host, before anybody is missed."""
_LOOK_S = 0.5
_MOST_COUNTED_S = 2.0
"""Time between two looks that counts: in more the looking agent was suspended, or waited itself."""
_HANGS_S = 1.0
"""The loops of an agent turn twice a second."""
_OWN_CODE = str(Path(__file__).parents[1])


def beat_every_s(limit_s: float) -> float:
    """Return the seconds between two beats where an agent is missed after `limit_s` without."""
    return min(_MOST_BETWEEN_BEATS_S, limit_s / _BEATS_PER_LIMIT)


@dataclass
class _Seen:
    """The signs of life of one agent, by the time for which this one has looked."""

    heard_s: float
    turned_s: float
    beat: Beat


class Liveness:
    """The agents at the other ends of connections, and who of them has not turned for too long."""

    def __init__(self, limit_s: float, *, now_s: float) -> None:
        """Miss an agent after `limit_s`; never where that is 0."""
        self._limit_s = limit_s
        self._looked_s = now_s
        self._own_s = 0.0
        self._seen: dict[int, _Seen] = {}

    def begin(self, node: int) -> None:
        """Expect beats of a node's agent from now on."""
        if self._limit_s:
            self._seen[node] = _Seen(self._own_s, self._own_s, Beat(turns=-1))

    def end(self, node: int) -> None:
        """Expect nothing more of it."""
        self._seen.pop(node, None)

    def hear(self, node: int, beat: Beat) -> None:
        if (seen := self._seen.get(node)) is None:
            return
        seen.heard_s = self._own_s
        if beat.turns != seen.beat.turns:
            seen.turned_s = self._own_s
        seen.beat = beat

    def look(self, now_s: float) -> dict[int, str]:
        """Return the nodes whose agents count as lost, with the reason; they are named once.

        Call it with the monotonic clock, when all that has come was heard.
        """
        passed_s = now_s - self._looked_s
        if not self._limit_s or passed_s < min(_LOOK_S, self._limit_s / 4):
            return {}
        self._looked_s = now_s
        self._own_s += min(passed_s, _MOST_COUNTED_S, self._limit_s / 4)
        limit_s = self._own_s - self._limit_s
        lost = {node: seen for node, seen in self._seen.items() if seen.turned_s <= limit_s}
        for node in lost:
            self.end(node)
        return {node: self._reason(seen) for node, seen in lost.items()}

    def _reason(self, seen: _Seen) -> str:
        """Tell an agent whose thread goes on from one of which nothing comes."""
        silent_s = self._own_s - seen.heard_s
        if silent_s > 2 * beat_every_s(self._limit_s):
            return (
                f"nothing was heard of it for {silent_s:.0f} s (is the process stopped, its host "
                "frozen, or the network between cut?)"
            )
        where = f", at {seen.beat.where}" if seen.beat.where is not None else ""
        return (
            f"its process lives, but has done nothing for {self._own_s - seen.turned_s:.0f} s"
            f"{where} (does a file system not answer there?)"
        )


class Heart:
    """The thread of an agent that sends its beats, for all of its loops."""

    def __init__(self, limit_s: float) -> None:
        """Send a beat every few seconds from `start` to `stop`; never where `limit_s` is 0."""
        self.senders: list[Callable[[Beat], None]] = []
        """They take each beat. They must not fail, and may wait."""
        self._every_s = beat_every_s(limit_s)
        self._turns = 0
        self._beaten_s = 0.0
        self._turned_s: dict[int, float] = {}
        """When each loop has turned, by its thread."""
        self._is_over = threading.Event()

    def turn(self) -> None:
        """Note that the loop of the calling thread has turned."""
        self._turned_s[threading.get_ident()] = time.monotonic()

    def leave(self) -> None:
        """Expect no more turns of the calling thread."""
        self._turned_s.pop(threading.get_ident(), None)

    def start(self) -> None:
        if self._every_s:
            threading.Thread(target=self._live, daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _live(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the agent's
        while not self._is_over.wait(self._every_s):
            beat = self._beat()
            for send in list(self.senders):
                send(beat)

    def _beat(self) -> Beat:
        """Return a beat whose number has grown if all loops have turned since the one before."""
        where, now_s = None, time.monotonic()
        loops = sorted((turned_s, thread) for thread, turned_s in self._turned_s.copy().items())
        if loops:
            turned_s, thread = loops[0]
            self._turns += turned_s > self._beaten_s
            if now_s - turned_s > _HANGS_S:
                frames = sys._current_frames()  # noqa: SLF001 - documented, in spite of its name
                where = _own_line(frames.get(thread))
        self._beaten_s = now_s
        return Beat(turns=self._turns, where=where)


def _own_line(frame: FrameType | None) -> str | None:
    """Return the innermost line of hpcdist in a stack."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_OWN_CODE):
            file = Path(code.co_filename).relative_to(_OWN_CODE)
            return f"{file}:{frame.f_lineno} ({code.co_name})"
        frame = frame.f_back
    return None
