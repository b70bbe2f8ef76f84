"""A hang: from nodes whose ranks show no sign of work to a notice, and then to the verdict.

After `launch.hang_notice_s` without a sign of work on any node, the run is said to hang; after
`launch.hang_timeout_s` it is ended with a verdict that names the rank for which the others wait,
and in what.

For a notice, a rank that uses no CPU and no GPU does nothing. One that uses them may wait in NCCL,
which spins: it counts as waiting where two looks find it in the same collective operation, at the
same place. A rank that evaluates while the others wait is in none, and so shows that the run works.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcdist.agent.messages import Dump, HangReport
from hpcdist.agent.outcome import failure
from hpcdist.base.text import listed
from hpcdist.job.spec import JobSpec, OwnCodeJob
from hpcdist.runs.standstills import (
    describe,
    find_standstills,
    known_accounts,
    to_blame,
)
from hpcdist.runs.verdict import Hang, RankEnd, Verdict

_TRAINER_TIMEOUT_S = 600.0
ANSWERS_S = 5.0
"""Time that agents have to say where ranks are before the verdict is made without them."""
_FORGIVEN_S = 5.0
"""After a suspension of node 0, how long others may take to hear that its time does not count."""
_FIRST_AGAIN_S = 60.0
"""Longest time between the first look and the second."""
_AGAIN_SHARE = 0.25
"""Share of the time without a sign of work that is between these two, where it is shorter."""


def limits_of(job: JobSpec) -> tuple[float, float]:
    """Return the seconds without a sign of work after which a run of this job is said to hang, and
    after which it is ended; inf: never."""
    timeout_s = job.launch.hang_timeout_s
    if timeout_s is None:
        timeout_s = 0.0 if isinstance(job, OwnCodeJob) else _TRAINER_TIMEOUT_S
    return job.launch.hang_notice_s or math.inf, timeout_s or math.inf


class _Mark(NamedTuple):
    """The state of a rank that stays the same from one look to the next while it only waits."""

    pending: tuple[tuple[str, int], ...]
    """Group and number of each operation that it has begun, and that has not ended."""
    place: str | None


@dataclass
class HangWatch:
    """The nodes of one attempt on which no rank works.

    Pure state: each method returns what is to be done. Dump asks all nodes where their ranks are (a
    look); a Hang is to be noted; a Verdict ends the run.
    """

    attempt: int
    num_nodes: int
    ranks_per_node: int
    timeout_s: float
    """Time without a sign of work after which the run is ended; inf: never."""
    deadline: float = math.inf
    """When `on_time` must be called next; times are of the monotonic clock."""
    _quiet_since: dict[int, float] = field(default_factory=dict)
    """By quiet node: when one of its ranks last worked."""
    _reports: dict[int, HangReport] = field(default_factory=dict)
    """Answers to the last Dump, by rank."""
    _answered: set[int] = field(default_factory=set)
    """The nodes that have answered it."""
    _is_last: bool = False
    """The time-out has passed: the verdict follows from the answers."""
    _marks: dict[int, _Mark] = field(default_factory=dict)
    """By rank, from the look before."""
    _again_s: float = _FIRST_AGAIN_S
    _most_again_s: float = _FIRST_AGAIN_S
    _hang: Hang | None = None
    """The hang that was noted, until a rank works again."""
    _forgiven_at: float = -math.inf

    def on_quiet(
        self,
        node: int,
        quiet_s: float,
        ends: Mapping[int, RankEnd],
        *,
        now: float,
        unix_now: float,
    ) -> list[Dump | Hang | Verdict]:
        """Take the time for which no rank of a node has worked; 0: one works again. `ends` are
        those of ranks that have ended well."""
        if self._is_last:  # an answer to the question may itself look like work
            return []
        if not quiet_s:
            self._quiet_since.pop(node, None)
            self._marks, self.deadline = {}, math.inf
            return self._recover(unix_now)
        if now - self._forgiven_at < _FORGIVEN_S:
            return []  # the agent sent it before it heard of the suspension
        self._quiet_since[node] = now - quiet_s
        if self.deadline < math.inf or not self._quiet_since.keys() >= self._nodes_at_work(ends):
            return []
        self._again_s, self._most_again_s = min(_FIRST_AGAIN_S, quiet_s * _AGAIN_SHARE), quiet_s
        return self._look(now)

    def on_reports(
        self,
        node: int,
        reports: Sequence[HangReport],
        ends: Mapping[int, RankEnd],
        *,
        now: float,
        unix_now: float,
    ) -> list[Dump | Hang | Verdict]:
        """Take a node's answer to Dump; with the last node's, decide."""
        if self.deadline == math.inf:
            return []
        self._reports |= {report.end.rank: report for report in reports}
        self._answered.add(node)
        if not self._answered >= self._nodes_at_work(ends):
            return []
        living = [report for rank, report in self._reports.items() if rank not in ends]
        if self._is_last:
            return [self._verdict(living, ends)]
        before, self._marks = self._marks, {one.end.rank: _mark(one) for one in living}
        said: list[Dump | Hang | Verdict] = []
        if living and all(_waits(one, before.get(one.end.rank)) for one in living):
            if self._hang is None:
                said.append(self._say(living, ends, now=now, unix_now=unix_now))
        elif before:
            said = self._recover(unix_now)
        # A look takes each rank a moment: after the second one they become rare.
        if self._hang is not None or before:
            self._again_s = self._most_again_s
        ends_at = max(self._quiet_since.values()) + self.timeout_s
        self.deadline = min(now + self._again_s, ends_at)
        return said

    def on_time(self, ends: Mapping[int, RankEnd], *, now: float) -> list[Dump | Hang | Verdict]:
        """Look again once that is due; or give the verdict, where answers have not come in time."""
        if now < self.deadline:
            return []
        if self._is_last:
            living = [report for rank, report in self._reports.items() if rank not in ends]
            return [self._verdict(living, ends)]
        return self._look(now)

    def forgive(self, now: float) -> None:
        """Forget the silence until now: node 0 was suspended, and the others had to wait for it."""
        self._forgiven_at = now
        self._quiet_since, self._marks = {}, {}
        self._is_last, self.deadline = False, math.inf

    def _nodes_at_work(self, ends: Mapping[int, RankEnd]) -> set[int]:
        """Return the nodes that have ranks which have not ended."""
        num_ended = Counter(end.node for end in ends.values())
        return {n for n in range(self.num_nodes) if num_ended[n] < self.ranks_per_node}

    def _look(self, now: float) -> list[Dump | Hang | Verdict]:
        self._reports, self._answered = {}, set()
        ends_at = max(self._quiet_since.values()) + self.timeout_s
        self._is_last = now >= ends_at
        self.deadline = now + ANSWERS_S if self._is_last else min(now + self._again_s, ends_at)
        return [Dump(attempt=self.attempt)]

    def _say(
        self,
        reports: Sequence[HangReport],
        ends: Mapping[int, RankEnd],
        *,
        now: float,
        unix_now: float,
    ) -> Hang:
        last_work_s = unix_now - (now - max(self._quiet_since.values()))
        clock = time.strftime("%H:%M:%S", time.localtime(last_work_s))
        silence = f"no rank has worked since {clock}"
        world_size = self.num_nodes * self.ranks_per_node
        first, sentence, _ = describe_hang(reports, world_size, ends, silence=silence)
        self._hang = Hang(attempt=self.attempt, message=sentence, rank=first.rank, time_s=unix_now)
        return self._hang

    def _recover(self, unix_now: float) -> list[Dump | Hang | Verdict]:
        if self._hang is None:
            return []
        recovered, self._hang = self._hang.recovered(unix_now), None
        return [recovered]

    def _verdict(self, reports: Sequence[HangReport], ends: Mapping[int, RankEnd]) -> Verdict:
        self.deadline = math.inf
        if reports:
            return hang_verdict(reports, self.num_nodes * self.ranks_per_node, ends)
        mute = sorted(set(range(self.num_nodes)) - self._answered or range(self.num_nodes))
        sentence = f"the run hangs, and the agents of {listed(mute, 'node')} did not say where"
        return failure.without_rank("hang", sentence, node=mute[0])


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


def hang_verdict(
    reports: Sequence[HangReport], world_size: int, ends: Mapping[int, RankEnd]
) -> Verdict:
    """Return the verdict on a run whose living ranks gave these reports; `ends` are those of ranks
    that have ended well, by rank."""
    first, sentence, others = describe_hang(reports, world_size, ends)
    return failure.verdict_on(first, kind="hang", sentence=sentence, victims=others)


def describe_hang(
    reports: Sequence[HangReport],
    world_size: int,
    ends: Mapping[int, RankEnd],
    *,
    silence: str | None = None,
) -> tuple[RankEnd, str, list[int]]:
    """Return the rank for which the others wait (it may have ended well), a sentence on that, and
    the other living ranks. `silence` says since when no rank has worked, for a run that only seems
    to hang; None: it hangs, after the time-out.

    The others wait for the rank that never reached a collective operation, where torch's flight
    recorder tells that. Else for one that does not answer or does not wait itself; among several,
    for the one with the fewest steps, then for the one that was silent longest.
    """
    accounts = known_accounts({report.end.rank: report.collectives for report in reports})
    mute = set(range(world_size)) - set(accounts) - set(ends) if accounts else set()
    standstills = find_standstills(accounts, range(world_size), mute)
    blamed = to_blame(standstills)
    lines = {report.end.rank: report.where for report in reports if report.where}
    finding = describe(standstills, lines)
    if blamed is not None and blamed in ends:
        early = ends[blamed]
        sentence = f"{failure.place(early)} has ended{failure.at_step(early)}; {finding}"
        return early, sentence, sorted(report.end.rank for report in reports)
    first, *others = sorted(
        reports,
        key=lambda report: (
            report.end.rank != blamed,
            report.is_waiting,
            -1 if report.end.step is None else report.end.step,
            -report.silent_s,
            report.end.rank,
        ),
    )
    how = "seems to hang" if silence else "hangs"
    sentence = f"{failure.place(first.end)} {how}{failure.at_step(first.end)}"
    if silence is None:
        sentence += f": no sign of work for {first.silent_s:.0f} s"
    sentence += f", {_whereabouts(first, mute)}"
    if finding is not None:
        sentence += f"; {finding}"
    elif first.is_waiting:
        sentence += "; all ranks wait for each other (logs/*.stacks has their stacks)"
    elif waiting := [report for report in others if report.is_waiting and report.calls]:
        sentence += f"; {_who_wait(waiting)}"
    if silence is not None:
        sentence += f"; {silence}"
    return first.end, sentence, [report.end.rank for report in others]


def _who_wait(waiting: Sequence[HangReport]) -> str:
    """Return words on where most of these ranks wait, by their stacks alone."""
    places = Counter((report.calls, report.where) for report in waiting)
    (calls, where), _ = places.most_common(1)[0]
    there = [one.end.rank for one in waiting if (one.calls, one.where) == (calls, where)]
    verb = "waits" if len(there) == 1 else "wait"
    return f"{listed(sorted(there))} {verb} in {calls} (at {where})"


def _whereabouts(report: HangReport, mute: Collection[int]) -> str:
    if report.state == "T":
        return "and is stopped (SIGSTOP?)"
    if report.where is None:
        return "and does not answer"
    calls = f", in {report.calls}" if report.calls and not report.is_waiting else ""
    if report.end.rank in mute:  # others have answered
        calls += ", and none of its threads can run Python (C code holds Python's lock, the GIL)"
    return f"in {report.where}{calls}"
