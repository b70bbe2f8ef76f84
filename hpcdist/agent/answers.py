"""The answers to requests as node 0's agent puts them together: it asks all agents, and waits for
their reports until each is there, or late."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from hpcdist.agent import messages
from hpcdist.agent.coordinator import Coordinator, Stage
from hpcdist.agent.messages import ToAgent
from hpcdist.agent.requests import Answer, AnyRequest, NodeReport

_MOST_OPEN = 16
"""Requests that are answered at a time; each takes a thread on every node."""
_WHY_NOT = {
    Stage.JOINING: "its ranks have not started yet: the agents of its nodes are still connecting",
    Stage.STARTING: "its ranks are being started",
    Stage.ENDING: "its ranks are being ended",
    Stage.FINISHED: "it has ended",
}


@dataclass
class _Open:
    """A request that was passed on, and what has come of it."""

    until_s: float
    attempt: int
    reports: dict[int, NodeReport] = field(default_factory=dict)


@dataclass
class Answers:
    """The requests that are open, by id. It is pure state, as the coordinator is."""

    coordinator: Coordinator
    send: Callable[[int, ToAgent], None]
    finish: Callable[[str, Answer], None]
    """(id, answer)"""
    _open: dict[str, _Open] = field(default_factory=dict)

    @property
    def deadline(self) -> float:
        """When `on_time` must be called next, by the coordinator's clock."""
        return min((one.until_s for one in self._open.values()), default=math.inf)

    def take(self, request: AnyRequest) -> None:
        """Pass a request on to the agents, or answer why it cannot be."""
        coordinator = self.coordinator
        refusal = _WHY_NOT.get(coordinator.stage)
        if len(self._open) >= _MOST_OPEN:
            refusal = f"it is answering {_MOST_OPEN} other requests"
        if request.id in self._open:
            return
        until_s = coordinator.now() + request.limit_s
        self._open[request.id] = _Open(until_s, coordinator.attempt)
        if refusal is not None:
            self._close(request.id, refusal=refusal)
            return
        for node in sorted(coordinator.members()):
            self.send(node, messages.Ask(request=request))
        self.on_time()

    def on_report(self, node: int, message: messages.Report) -> None:
        if (found := self._open.get(message.request)) is not None:
            found.reports[node] = message.report
            self.on_time()

    def on_time(self) -> None:
        """Answer what all have reported on that are still there, or what has taken too long."""
        members, now_s = self.coordinator.members(), self.coordinator.now()
        for name, one in list(self._open.items()):
            if one.reports.keys() >= members or now_s >= one.until_s:
                self._close(name, missing=sorted(members - one.reports.keys()))

    def _close(
        self, name: str, *, missing: list[int] | None = None, refusal: str | None = None
    ) -> None:
        one, coordinator = self._open.pop(name), self.coordinator
        answer = Answer(
            attempt=one.attempt,
            time_s=coordinator.unix_now(),
            world_size=coordinator.num_nodes * coordinator.ranks_per_node,
            reports=one.reports,
            missing=missing or [],
            refusal=refusal,
        )
        self.finish(name, answer)
