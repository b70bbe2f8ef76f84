"""The succession: what the members of a run do that have lost their leader, node 0's agent.

The next node leads the nodes that are left: it takes the number of the next attempt, which one can
take, and the others join it. A member whose leader has closed the connection knows that it is gone.
One that hears nothing may itself be cut off: it takes no number as long as the leader shows in the
run's directory that it lives; and none of them without the scheduler's word that the job is to go
on (agent/outcome/lives.py). So of two parts of a run that are cut off from each other one goes on.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct

Step = Literal["wait", "claim", "join", "leave"]
_TURN_S = 0.5
"""Time after which the next node may lead where the one before it does not."""
LIMIT_S = 90.0
"""Time after which a member leaves that has found no leader."""


class Seen(NamedTuple):
    """The run's directory as a member sees it."""

    newest: int
    """Number of the newest attempt."""
    leader: int | None
    """The node that leads it; None: it does not say yet."""
    leader_lives: bool
    """A leader, old or new, has shown a moment ago that it lives."""


class Succession(Struct, frozen=True, kw_only=True):
    """One member's part in the succession; pure."""

    node: int
    lost: int
    """The node that led."""
    nodes: tuple[int, ...]
    """The nodes of the attempt that has lost its leader."""
    attempt: int
    is_sure: bool
    """The leader is gone: its host has said so, and this agent was not suspended before."""

    @property
    def rest(self) -> list[int]:
        return [node for node in self.nodes if node != self.lost]

    def step(self, seen: Seen, late_s: float) -> Step:
        """Return the next step, so many seconds after the ranks of the member were gone."""
        if seen.newest > self.attempt:
            is_gone = seen.leader == self.lost and not seen.leader_lives
            if seen.newest > self.attempt + 1 or is_gone or late_s > LIMIT_S:
                return "leave"
            return "wait" if seen.leader in {None, self.lost} else "join"
        is_turn = late_s >= self.rest.index(self.node) * _TURN_S
        if is_turn and (self.is_sure or not seen.leader_lives):
            return "claim"
        return "leave" if late_s > LIMIT_S else "wait"
