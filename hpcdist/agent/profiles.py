"""What takes the time in a node's living ranks: a few steps under torch's profiler, in the rank
itself, or samples by py-spy where a rank tells no steps."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from hpcdist.agent import py_spy
from hpcdist.agent.requests import NodeProfiles, RankProfile, WantProfile
from hpcdist.agent.watch import LivingRank, RankWatch
from hpcdist.base import files
from hpcdist.base.polling import poll
from hpcdist.job.spec import OwnCodeJob
from hpcdist.rank.wishes import StepReport, read_report, wish_for
from hpcdist.runs.rank_files import name_of

_POLL_S = 0.1


def report_profiles(
    request: WantProfile, ranks: Sequence[LivingRank], watch: RankWatch
) -> NodeProfiles:
    """Return what took the time in these ranks. Of a script that has told no step yet nobody knows
    whether it ever will: it is sampled."""
    sampled = [rank for rank in ranks if _tells_no_steps(rank, watch)]
    profiled = [rank for rank in ranks if rank not in sampled]
    found: list[RankProfile] = []
    samplers = [
        threading.Thread(
            target=lambda rank=rank: found.append(_sample(request, rank, watch)), daemon=True
        )
        for rank in sampled
    ]
    for sampler in samplers:
        sampler.start()
    found += _profile(request, profiled, watch)
    for sampler in samplers:
        sampler.join()
    return NodeProfiles(ranks=found)


def _tells_no_steps(rank: LivingRank, watch: RankWatch) -> bool:
    return (
        isinstance(watch.job, OwnCodeJob) and watch.board.read(rank.order.local_rank).step is None
    )


def _profile(
    request: WantProfile, ranks: Sequence[LivingRank], watch: RankWatch
) -> list[RankProfile]:
    """Wish for a profile of each rank's next steps, and wait for the reports."""
    board = watch.board
    desks = {rank: board.desk(rank.order.local_rank) for rank in ranks}
    before = {rank: board.read(rank.order.local_rank).step for rank in ranks}
    numbers = {rank: wish_for(desk, request.steps) for rank, desk in desks.items()}

    def is_over() -> bool | None:
        living = list(watch.pids.values())
        return all(read_report(desks[r], numbers[r]) or r.pid not in living for r in ranks) or None

    poll(is_over, interval_s=_POLL_S, limit_s=request.wait_s)
    found = []
    for rank, desk in desks.items():
        report = read_report(desk, numbers[rank])
        if report is None:
            wish_for(desk, 0)
            after = board.read(rank.order.local_rank).step
            has_ended = rank.pid not in list(watch.pids.values())
            why = "it has ended" if has_ended else _why_late(request, before[rank], after)
            report = StepReport(error=why)
        trace = [report.trace] if report.trace else []
        found.append(RankProfile(rank=rank.order.rank, report=report, files=trace))
    return found


def _why_late(request: WantProfile, before: int | None, step: int | None) -> str:
    made = (step or 0) - (before or 0)
    if made <= 0:
        return f"it made no step within {request.wait_s:g} s"
    return f"it made only {made} steps within {request.wait_s:g} s (more: --wait)"


def _sample(request: WantProfile, rank: LivingRank, watch: RankWatch) -> RankProfile:
    order = rank.order
    folder = watch.run.traces_folder
    name = name_of("rank", f".profile-{request.id[:8]}", order.rank, order.attempt)
    try:
        folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
        samples = py_spy.record(rank.pid, Path(folder, name), length_s=request.sample_s)
    except Exception as error:  # noqa: BLE001 - the other ranks' profiles count
        samples = py_spy.Samples(error=f"it could not be sampled: {error}")
    return RankProfile(
        rank=order.rank,
        is_sampled=True,
        files=[f"{folder.name}/{file.name}" for file in samples.files],
        report=StepReport(
            wall_s=samples.length_s, operations=samples.operations, error=samples.error
        ),
    )
