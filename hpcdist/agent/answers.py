"""The answers to requests as node 0's agent puts them together: it asks all agents, and waits for
their reports until each is there, or late."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from hpcdist.agent import messages
from hpcdist.agent.coordinator import Coordinator, Stage
from hpcdist.agent.messages import ToAgent
from hpcdist.agent.requests import Answer, AnyRequest

_MOST_OPEN = 16
"""Requests that are answered at a time; each takes a thread on every node."""
_WHY_NOT = {
    Stage.JOINING: "its ranks have not started yet: the agents of its nodes are still connecting",
    Stage.STARTING: "its ranks are being started",
    Stage.ENDING: "its ranks are being ended",
    Stage.FINISHED: "it has ended",
}


@dataclass
class Answers:
    """The answers that are waited for, by request. It is pure state, as the coordinator is."""

    coordinator: Coordinator
    send: Callable[[int, ToAgent], None]
    finish: Callable[[str, Answer], None]
    """(id, answer)"""
    _open: dict[str, tuple[float, Answer]] = field(default_factory=dict)
    """When each must be there, by the coordinator's clock, and what there is of it."""

    @property
    def deadline(self) -> float:
        """When `on_time` must be called next, by the coordinator's clock."""
        return min((until_s for until_s, _ in self._open.values()), default=math.inf)

    def take(self, request: AnyRequest) -> None:
        """Pass a request on to the agents, or answer why it cannot be."""
        if request.id in self._open:
            return
        coordinator = self.coordinator
        refusal = _WHY_NOT.get(coordinator.stage)
        if len(self._open) >= _MOST_OPEN:
            refusal = f"it is answering {_MOST_OPEN} other requests"
        answer = Answer(
            attempt=coordinator.attempt,
            time_s=coordinator.unix_now(),
            world_size=coordinator.num_nodes * coordinator.ranks_per_node,
            refusal=refusal,
        )
        if refusal is not None:
            self.finish(request.id, answer)
            return
        self._open[request.id] = coordinator.now() + request.limit_s, answer
        for node in sorted(coordinator.members()):
            self.send(node, messages.Ask(request=request))
        self.on_time()

    def on_report(self, node: int, message: messages.Report) -> None:
        if message.request in self._open:
            self._open[message.request][1].reports[node] = message.report
            self.on_time()

    def on_time(self) -> None:
        """Answer what all have reported on that are still there, or what has taken too long."""
        members, now_s = self.coordinator.members(), self.coordinator.now()
        for name, (until_s, answer) in list(self._open.items()):
            if answer.reports.keys() >= members or now_s >= until_s:
                del self._open[name]
                missing = sorted(members - answer.reports.keys())
                time_s = self.coordinator.unix_now()
                self.finish(name, msgspec.structs.replace(answer, time_s=time_s, missing=missing))
