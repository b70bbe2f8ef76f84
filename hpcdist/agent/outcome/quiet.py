"""From nodes whose ranks show no sign of work to the word that a run hangs, and back.

A rank that uses no CPU and no GPU does nothing. One that uses them may wait in NCCL, which spins:
it counts as waiting where two looks find it in the same collective operation, at the same place. A
rank that evaluates while the others wait is in none, and so says that the run works.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcdist.agent import messages
from hpcdist.agent.messages import HangReport
from hpcdist.agent.outcome.hang import describe_hang
from hpcdist.runs.verdict import Hang, RankEnd

_FIRST_AGAIN_S = 60.0
_AGAIN_SHARE = 0.25
"""Share of the time without a sign of work after which is looked again."""


class _Mark(NamedTuple):
    """What stays the same in a rank that waits."""

    pending: tuple[tuple[str, int], ...]
    """Group and number of each operation that it has begun, and that has not ended."""
    place: str | None


@dataclass
class QuietRun:
    """The nodes of one attempt on which no rank works, and what was said of that; pure state."""

    attempt: int
    world_size: int
    now: Callable[[], float]
    unix_now: Callable[[], float]
    ask: Callable[[], None]
    """Have all nodes report where their ranks are."""
    note: Callable[[Hang], None]
    deadline: float = math.inf
    """When `on_time` must be called next."""
    _nodes: dict[int, float] = field(default_factory=dict)
    """Seconds without a sign of work, as the quiet nodes told them."""
    _reports: dict[int, HangReport] = field(default_factory=dict)
    _answered: set[int] = field(default_factory=set)
    _marks: dict[int, _Mark] = field(default_factory=dict)
    """Of the look before, by rank."""
    _again_s: float = _FIRST_AGAIN_S
    _hang: Hang | None = None
    """What was said, and holds."""

    def on_message(
        self,
        node: int,
        message: messages.Quiet | messages.Stacks,
        members: Collection[int],
        ends: Mapping[int, RankEnd],
    ) -> None:
        """Take what a node tells; `members` are those that are there, and `ends` those of ranks
        that have ended well."""
        match message:
            case messages.Quiet():
                self.on_quiet(node, message.quiet_s, members)
            case messages.Stacks():
                self.on_reports(node, message.reports, members, ends)

    def on_quiet(self, node: int, quiet_s: float, members: Collection[int]) -> None:
        """Take what a node tells; 0: it works again."""
        if not quiet_s:
            self._nodes.pop(node, None)
            self.deadline = math.inf
            self._marks = {}
            self._recover()
            return
        self._nodes[node] = quiet_s
        if self._nodes.keys() >= set(members):
            self._again_s = min(_FIRST_AGAIN_S, quiet_s * _AGAIN_SHARE)
            self._look()

    def on_time(self) -> None:
        if self.now() >= self.deadline:
            self._look()

    def on_reports(
        self,
        node: int,
        reports: Sequence[HangReport],
        members: Collection[int],
        ends: Mapping[int, RankEnd],
    ) -> None:
        """Take a node's reports; with the last one's is decided."""
        if not self._nodes:
            return
        self._reports |= {report.end.rank: report for report in reports}
        self._answered.add(node)
        if self._answered >= set(members) and self._reports:
            living = [one for rank, one in self._reports.items() if rank not in ends]
            self._decide(living, ends)

    def _look(self) -> None:
        self._reports, self._answered = {}, set()
        self.deadline = self.now() + self._again_s
        self.ask()

    def _decide(self, reports: Sequence[HangReport], ends: Mapping[int, RankEnd]) -> None:
        before, self._marks = self._marks, {one.end.rank: _mark(one) for one in reports}
        may_work = [one for one in reports if not _waits(one, before.get(one.end.rank))]
        if not may_work and reports:
            self._say(reports, ends)
        elif before:
            self._recover()
        # Looks take each rank a moment: they become rare where nothing follows from them.
        if self._hang is not None or before:
            self._again_s = max(self._again_s, min(self._nodes.values()))
        self.deadline = self.now() + self._again_s

    def _say(self, reports: Sequence[HangReport], ends: Mapping[int, RankEnd]) -> None:
        if self._hang is not None:
            return
        quiet_s = min(self._nodes.values())
        clock = time.strftime("%H:%M:%S", time.localtime(self.unix_now() - quiet_s))
        silence = f"no rank has worked since {clock}"
        found = describe_hang(reports, self.world_size, ends, silence=silence)
        self._hang = Hang(
            attempt=self.attempt,
            message=found.sentence,
            rank=found.first.rank,
            time_s=self.unix_now(),
        )
        self.note(self._hang)

    def _recover(self) -> None:
        if self._hang is not None:
            self.note(self._hang.recovered(self.unix_now()))
            self._hang = None


def _mark(report: HangReport) -> _Mark:
    groups = report.collectives.groups if report.collectives is not None else []
    pending = ((one.name, op.number) for one in groups for op in one.operations if not op.is_done)
    return _Mark(tuple(sorted(pending)), report.stack)


def _waits(report: HangReport, before: _Mark | None) -> bool:
    """Return True where a rank does nothing, or nothing but wait for others since the last look."""
    if not report.spins:
        return True
    mark = _mark(report)
    return (bool(mark.pending) or report.is_waiting) and mark.place is not None and mark == before
