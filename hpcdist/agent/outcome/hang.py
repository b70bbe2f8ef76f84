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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hpcdist.agent.messages import Dump, HangReport
from hpcdist.agent.outcome import failure, words
from hpcdist.base.text import listed
from hpcdist.job.spec import JobSpec, OwnCodeJob
from hpcdist.runs.requests import describe, find_standstills, to_blame
from hpcdist.runs.verdict import Hang, RankEnd, Verdict

_TRAINER_TIMEOUT_S = 600.0
ANSWERS_S = 5.0
"""Time that agents have to say where ranks are before the verdict is made without them."""
_FORGIVEN_S = 5.0
"""After a suspension of node 0, how long others may take to hear that its time does not count."""
_AGAIN_SHARE = 0.25
"""Share of the time without a sign of work after which ranks are looked at again."""


def limits_of(job: JobSpec) -> tuple[float, float]:
    """Return the seconds without a sign of work after which a run of this job is said to hang, and
    after which it is ended; inf: never."""
    timeout_s = job.launch.hang_timeout_s
    if timeout_s is None:
        timeout_s = 0.0 if isinstance(job, OwnCodeJob) else _TRAINER_TIMEOUT_S
    return job.launch.hang_notice_s or math.inf, timeout_s or math.inf


@dataclass
class HangWatch:
    """The nodes of one attempt on which no rank works.

    Pure state: each method returns what is to be done. Dump asks all nodes where their ranks are (a
    look); a Hang is to be noted; a Verdict ends the run. Times are of the monotonic clock.
    """

    attempt: int
    nodes: Sequence[int]
    world_size: int
    timeout_s: float
    """Time without a sign of work after which the run is ended; inf: never."""
    ends: Mapping[int, RankEnd]
    """The ends of ranks that have ended well, by rank; it grows."""
    deadline: float = math.inf
    """When `on_time` must be called next."""
    _quiet_since: dict[int, float] = field(default_factory=dict)
    """By quiet node: when one of its ranks last worked."""
    _reports: dict[int, Sequence[HangReport]] = field(default_factory=dict)
    """Answers to the last Dump, by node."""
    _is_last: bool = False
    """The time-out has passed: the verdict follows from the answers."""
    _before: dict[int, HangReport] = field(default_factory=dict)
    """Answers to the Dump before the last one, by rank."""
    _hang: Hang | None = None
    """The hang that was noted, until a rank works again."""
    _forgiven_at: float = -math.inf

    def on_quiet(
        self, node: int, quiet_s: float, *, now: float, unix_now: float
    ) -> list[Dump | Hang | Verdict]:
        """Take the time for which no rank of a node has worked; 0: one works again."""
        if self._is_last:  # an answer to the question may itself look like work
            return []
        if not quiet_s:
            self._quiet_since.pop(node, None)
            self._before, self.deadline = {}, math.inf
            return self._recover(unix_now)
        if now - self._forgiven_at < _FORGIVEN_S:
            return []  # the agent sent it before it heard of the suspension
        self._quiet_since[node] = now - quiet_s
        is_quiet = self._quiet_since.keys() >= self._nodes_at_work()
        return self._look(now) if is_quiet and self.deadline == math.inf else []

    def on_reports(
        self, node: int, reports: Sequence[HangReport], *, now: float, unix_now: float
    ) -> list[Dump | Hang | Verdict]:
        """Take a node's answer to Dump; with the last node's, decide."""
        if self.deadline == math.inf:
            return []
        self._reports[node] = reports
        if not self._reports.keys() >= self._nodes_at_work():
            return []
        if self._is_last:
            return [self._verdict()]
        before, self._before = self._before, {one.end.rank: one for one in self._living()}
        waits = [_waits(one, before.get(rank)) for rank, one in self._before.items()]
        if not waits or not all(waits):
            return self._recover(unix_now) if before else []
        if self._hang is not None:
            return []
        since = time.localtime(unix_now - (now - max(self._quiet_since.values())))
        silence = f"no rank has worked since {time.strftime('%H:%M:%S', since)}"
        found = hang_verdict(self._living(), self.world_size, self.ends, silence=silence)
        rank = found.first.rank if found.first else None
        self._hang = Hang(attempt=self.attempt, message=found.message, rank=rank, time_s=unix_now)
        return [self._hang]

    def on_time(self, *, now: float) -> list[Dump | Hang | Verdict]:
        """Look again once that is due; or give the verdict, where answers have not come in time."""
        if now < self.deadline:
            return []
        return [self._verdict()] if self._is_last else self._look(now)

    def forgive(self, now: float) -> None:
        """Forget the silence until now: node 0 was suspended, and the others had to wait for it."""
        self._forgiven_at = now
        self._quiet_since, self._before = {}, {}
        self._is_last, self.deadline = False, math.inf

    def _nodes_at_work(self) -> set[int]:
        """Return the nodes that have ranks which have not ended."""
        num_ended = Counter(end.node for end in self.ends.values())
        ranks_per_node = self.world_size // len(self.nodes)
        return {node for node in self.nodes if num_ended[node] < ranks_per_node}

    def _living(self) -> list[HangReport]:
        reports = (one for of_node in self._reports.values() for one in of_node)
        return [one for one in reports if one.end.rank not in self.ends]

    def _look(self, now: float) -> list[Dump | Hang | Verdict]:
        self._reports = {}
        since = max(self._quiet_since.values())
        self._is_last = now >= since + self.timeout_s
        # A look takes each rank a moment: the longer nobody works, the rarer they become.
        again = min(now + (now - since) * _AGAIN_SHARE, since + self.timeout_s)
        self.deadline = now + ANSWERS_S if self._is_last else again
        return [Dump(attempt=self.attempt)]

    def _recover(self, unix_now: float) -> list[Dump | Hang | Verdict]:
        hang, self._hang = self._hang, None
        return [] if hang is None else [replace(hang, recovered_s=unix_now)]

    def _verdict(self) -> Verdict:
        self.deadline = math.inf
        if living := self._living():
            return hang_verdict(living, self.world_size, self.ends)
        mute = sorted(set(self.nodes) - self._reports.keys() or self.nodes)
        sentence = f"the run hangs, and the agents of {listed(mute, 'node')} did not say where"
        return Verdict(kind="hang", message=sentence, node=mute[0])


def _waits(report: HangReport, before: HangReport | None) -> bool:
    """Return True where a rank does nothing, or nothing but wait for others since the last look."""
    if not report.spins:
        return True
    pending = _pending(report)
    is_same = before is not None and (pending, report.stack) == (_pending(before), before.stack)
    return (bool(pending) or report.is_waiting) and report.stack is not None and is_same


def _pending(report: HangReport) -> set[tuple[str, int]]:
    """Return the operations that a rank has begun, and that have not ended: groups and numbers."""
    groups = report.collectives.groups if report.collectives is not None else []
    return {(one.name, op.number) for one in groups for op in one.operations if not op.is_done}


def hang_verdict(
    reports: Sequence[HangReport],
    world_size: int,
    ends: Mapping[int, RankEnd],
    *,
    silence: str | None = None,
) -> Verdict:
    """Return the verdict on a run whose living ranks gave these reports; `ends` are those of ranks
    that have ended well; `silence` is for a run that only seems to hang, and ends no rank.

    It names the rank for which the others wait: the one that never reached a collective operation,
    where torch's flight recorder tells that. Else one that does not answer or does not wait itself;
    among several, the one with the fewest steps, then the one that was silent longest.
    """
    accounts = {report.end.rank: report.collectives for report in reports}
    ranks = range(world_size)
    standstills = find_standstills(accounts, ranks, living=set(ranks) - set(ends))
    blamed = to_blame(standstills)
    lines = {report.end.rank: report.where for report in reports if report.where}
    finding = describe(standstills, lines)

    def order(report: HangReport) -> tuple[bool, bool, int, float, int]:
        step = -1 if report.end.step is None else report.end.step
        rank = report.end.rank
        return rank != blamed, report.is_waiting, step, -report.silent_s, rank

    first, *others = sorted(reports, key=order)
    end, sentence = first.end, words.hangs(first, others, finding, silence)
    if blamed is not None and blamed in ends:
        end, sentence = ends[blamed], f"{words.has_ended(ends[blamed])}; {finding}"
    victims = [] if silence else [one for one in accounts if one != end.rank]
    return failure.of_rank(end, "hang", sentence, victims)
