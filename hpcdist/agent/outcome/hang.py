"""The verdict on ranks that make no step: which one the others wait for, and in what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from hpcdist.agent.messages import HangReport
from hpcdist.agent.outcome import failure
from hpcdist.agent.outcome.collectives import (
    describe,
    find_standstills,
    known_accounts,
    to_blame,
)
from hpcdist.base.text import listed
from hpcdist.runs.verdict import RankEnd, Verdict


class HangFound(NamedTuple):
    """Where a run hangs."""

    first: RankEnd
    """The rank to look at, which may have ended well."""
    sentence: str
    others: list[int]
    """The other living ranks."""


def hang_verdict(
    reports: Sequence[HangReport], world_size: int, ends: Mapping[int, RankEnd]
) -> Verdict:
    """Return the verdict on a run whose living ranks gave these reports; `ends` are those of ranks
    that have ended well, by rank."""
    found = describe_hang(reports, world_size, ends)
    return failure.verdict_on(
        found.first, kind="hang", sentence=found.sentence, victims=found.others
    )


def describe_hang(
    reports: Sequence[HangReport],
    world_size: int,
    ends: Mapping[int, RankEnd],
    *,
    silence: str | None = None,
) -> HangFound:
    """Return which rank the others wait for, and in what. `silence` says by what the run seems to
    hang; None: it does, by the steps that the rank has not made.

    Where torch's flight recorder tells which collective operation a rank never reached, it is that
    rank. Else one that does not answer or is not waiting itself comes before one that is; then the
    one with the fewest steps; then the one that was silent longest.
    """
    accounts = known_accounts({report.end.rank: report.collectives for report in reports})
    mute = set(range(world_size)) - set(accounts) - set(ends) if accounts else set()
    standstills = find_standstills(accounts, range(world_size), mute)
    blamed = to_blame(standstills)
    lines = {report.end.rank: report.where for report in reports if report.where}
    finding = describe(standstills, lines)
    if blamed is not None and blamed in ends:
        early = ends[blamed]
        return HangFound(
            early,
            f"{failure.place(early)} has ended{failure.at_step(early)}; {finding}",
            sorted(report.end.rank for report in reports),
        )
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
    step = failure.at_step(first.end)
    how = f"seems to hang{step}" if silence else f"hangs{step}: no step for {first.silent_s:.0f} s"
    sentence = f"{failure.place(first.end)} {how}, {_whereabouts(first, mute)}"
    if finding is not None:
        sentence += f"; {finding}"
    elif first.is_waiting:
        sentence += "; all ranks wait for each other (logs/*.stacks has their stacks)"
    elif waiting := [report for report in others if report.is_waiting and report.calls]:
        sentence += f"; {_who_wait(waiting)}"
    if silence is not None:
        sentence += f"; {silence}"
    return HangFound(first.end, sentence, [report.end.rank for report in others])


def _who_wait(waiting: Sequence[HangReport]) -> str:
    """Say where most of these ranks wait, by their stacks alone."""
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
