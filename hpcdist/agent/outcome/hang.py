"""The verdict on ranks that make no step: which one the others wait for, and in what."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hpcdist.agent.messages import HangReport
from hpcdist.agent.outcome import failure
from hpcdist.agent.outcome.collectives import describe, find_standstills, to_blame
from hpcdist.runs.verdict import RankEnd, Verdict


def hang_verdict(
    reports: Sequence[HangReport], world_size: int, ends: Mapping[int, RankEnd]
) -> Verdict:
    """Return the verdict on a run whose living ranks gave these reports; `ends` are those of ranks
    that have ended well, by rank.

    Where torch's flight recorder tells which collective operation a rank never reached, it is that
    rank. Else one that does not answer or is not waiting itself comes before one that is; then the
    one with the fewest steps; then the one that was silent longest.
    """
    accounts = {
        report.end.rank: report.collectives
        for report in reports
        if report.collectives is not None and report.collectives.is_recorded
    }
    mute = set(range(world_size)) - set(accounts) - set(ends) if accounts else set()
    standstills = find_standstills(accounts, range(world_size), mute)
    blamed = to_blame(standstills)
    lines = {report.end.rank: report.where for report in reports if report.where}
    finding = describe(standstills, lines)
    if blamed is not None and blamed in ends:
        early = ends[blamed]
        return failure.verdict_on(
            early,
            kind="hang",
            sentence=f"{failure.place(early)} has ended{failure.at_step(early)}; {finding}",
            victims=sorted(report.end.rank for report in reports),
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
    sentence = (
        f"{failure.place(first.end)} hangs{failure.at_step(first.end)}: no step for "
        f"{first.silent_s:.0f} s, {_whereabouts(first, mute)}"
    )
    if finding is not None:
        sentence += f"; {finding}"
    elif first.is_waiting:
        sentence += "; all ranks wait for each other, see logs/*.stacks"
    return failure.verdict_on(
        first.end,
        kind="hang",
        sentence=sentence,
        victims=[report.end.rank for report in others],
    )


def _whereabouts(report: HangReport, mute: Collection[int]) -> str:
    if report.state == "T":
        return "and is stopped (SIGSTOP?)"
    if report.where is None:
        return "and does not answer"
    calls = f", in {report.calls}" if report.calls and not report.is_waiting else ""
    if report.end.rank in mute:  # others have answered
        calls += ", and lets none of its other threads run (C code that holds Python's lock)"
    return f"in {report.where}{calls}"
