"""Advice on what to change, in plain words with its figures: only what fits the case, and pays.

What could be won goes by the measured share of the time (Amdahl): where a part that is the share p
goes altogether, all is 1 / (1 - p) times as fast at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcdist.base.text import format_time, listed, number_of, shown, whole_percents
from hpcdist.summary.figures import shares as part
from hpcdist.summary.figures.run import OWN_CODE
from hpcdist.summary.values import Cell, RunFigures, Straggler

MOST = 2
"""Largest number of advices: people follow the first."""
_WORTH_ADVICE = 0.05
"""Least share of the time that is worth it: for less nobody changes a job."""
_WORTH_HALVING = 0.1
"""The same, for what can be made half at best."""
_PLAINLY_MORE = 1.2
_SELDOMER = 10
"""So many times as seldom checkpoints are saved: a failure must not cost more than is won."""
_NEARLY_ALL = 0.99
_SAME = 0.005
"""Largest difference between two shares that are the same to a reader of whole percents."""
_IN_MEMORY = {"digits", "mnist", "fashion_mnist"}
_SUBJECTS = {
    part.DATA: "data wait is {}",
    part.COMMUNICATION: "exposed communication is {}",
    part.STRAGGLERS: "waiting for the slowest rank is {}",
    part.FIXED: "the fixed cost of a step (optimizer and everything in between) is {}",
    part.CHECKPOINTS: "saving checkpoints is {}",
    part.UNDIVIDED: "{} is in no phase",
}
"""The beginning of the advice on a share."""


class Case(NamedTuple):
    """Runs of one size, and the job that they ran."""

    job: Mapping[str, Any]
    """By dotted key, as in the job file."""
    cell: Cell
    runs: Sequence[RunFigures]
    cpus_per_rank: float | None


def advise(case: Case) -> list[str]:
    """Return the most worthwhile advice, largest share first; empty where nothing is worth it."""
    shares, lost = case.cell.shares or {}, case.cell.lost or {}
    percents = whole_percents(shares)
    told = whole_percents(lost)  # stand before the advice: there are no two numbers for one share
    percents |= {name: told[name] for name in told if abs(lost[name] - shares[name]) < _SAME}
    texts = []
    for name in sorted(_SUBJECTS, key=lambda name: -shares[name]):
        advice = _advice(name, case, percents[name] / 100)
        if shares[name] >= _WORTH_ADVICE and advice is not None:
            texts.append(_SUBJECTS[name].format(f"{percents[name]} % of the time") + advice)
    return texts[:MOST]


def straggler_named(straggler: Straggler) -> str:
    """Name a straggler: `rank 3 (node 1, host n17)`, `all ranks of node 1 (host n17)`, `ranks 1 and
    6`, `all ranks of host n17`."""
    if straggler.rank is None and straggler.node is None:
        return f"all ranks of host {shown(straggler.host or '')}"
    if straggler.others and straggler.rank is not None:
        return listed([straggler.rank, *straggler.others])
    if straggler.others:
        return f"all ranks of {listed([straggler.node or 0, *straggler.others], 'node')}"
    where = [] if straggler.node is None or straggler.rank is None else [f"node {straggler.node}"]
    where += [f"host {shown(straggler.host)}"] if straggler.host else []
    who = f"rank {straggler.rank}"
    if straggler.rank is None:
        who = f"all ranks of node {straggler.node}"
    return f"{who} ({', '.join(where)})" if where else who


def _advice(name: str, case: Case, share: float) -> str | None:
    """Say what helps against a share of the time, with what it would bring; None where nothing is
    known to."""
    at_most = f"would give at most {_times(share)}"
    has_own_loop = case.job.get("workload") in OWN_CODE
    batch = case.job.get("train.batch_size")
    # One rank, and ranks that share CPUs, wait for no network, and for no slow rank.
    waits = case.cell.world_size > 1 and (case.cpus_per_rank is None or case.cpus_per_rank >= 1)
    text = None
    if name == part.DATA:
        text = _data(case, at_most)
    elif name == part.STRAGGLERS and case.cell.straggler is not None:
        text = _straggler(case, case.cell.straggler, at_most)
    elif name == part.STRAGGLERS and waits:
        text = ", but no single rank is clearly the slowest: batches may take different times"
    elif name == part.COMMUNICATION and waits and share >= _WORTH_HALVING:
        twice, accumulate = "twice the batch per rank", case.job.get("train.accumulate")
        if isinstance(batch, int) and isinstance(accumulate, int):
            twice = f"train.accumulate={2 * accumulate} or train.batch_size={2 * batch}"
        gain = f"about {_times(share / 2)}, at most {_times(share)} if it disappeared completely"
        text = f": {twice} communicates half as often: {gain}"
        if _spans_hosts(case):
            text += "; `hpcdist submit allreduce` measures the network between the nodes"
    elif name == part.FIXED and share >= _WORTH_HALVING:
        twice = f"train.batch_size={2 * batch}" if isinstance(batch, int) else "larger batches"
        text = f": it counts half as much with {twice}: about {_times(share / 2)}"
    elif name == part.CHECKPOINTS:
        text = f": save less often; {at_most}" if has_own_loop else _checkpoints(case, share)
    elif name == part.UNDIVIDED and has_own_loop:
        text = ", so its cause is not known: call record.start(model=model) before the loop"
    return text


def _checkpoints(case: Case, share: float) -> str | None:
    units = (unit for unit in ("steps", "epochs") if case.job.get(f"checkpoint.every_{unit}"))
    if (unit := next(units, None)) is None:
        return None
    every = int(case.job[f"checkpoint.every_{unit}"])
    new = min(_SELDOMER * every, max(getattr(run, unit) or 0 for run in case.runs))
    gain = _times(share * (1 - every / max(1, new)))
    text = f": checkpoint.every_{unit}={new} would give about {gain}, but a failure then costs up"
    return f"{text} to {new} {unit}" if new > every else None


def _data(case: Case, at_most: str) -> str | None:
    job, workers = case.job, case.job.get("data.workers")
    cpus = None if case.cpus_per_rank is None else max(1, math.floor(case.cpus_per_rank))
    have = f" on {number_of(cpus, 'CPU')} per rank" if cpus else ""
    if not isinstance(workers, int):  # a script has its own loader
        return f"{have}: use more workers in its DataLoader; {at_most}"
    at = f" at {number_of(workers, 'worker')}{have}"
    if job.get("data.name") in _IN_MEMORY and job.get("data.transform") == "none":
        in_memory = "its data are in memory and need no workers: data.workers=0"
        return f"{at}: {in_memory}" if workers else None
    more = max(1, 2 * workers)  # more at once is a guess
    if cpus is None or workers < cpus:
        return f"{at}: try data.workers={min(cpus or more, more)}; {at_most}"
    less = "give each rank more CPUs (resources.cpus_per_gpu), or make reading a sample cheaper"
    return f"{at}, so that more workers would not help: {less}; {at_most}"


def _straggler(case: Case, straggler: Straggler, at_most: str) -> str:
    look = "look for what slows it down there"
    if straggler.others:
        look = "look for what they have in common, and mend all of them"
    elif straggler.host is None:
        look = "this happens on other hosts too, so look at what that rank does"
    elif _spans_hosts(case):
        look += ", or exclude that node"
    verb = "need" if straggler.rank is None or straggler.others else "needs"
    phase = f" (most of it {straggler.phase.replace('_', ' ')})" if straggler.phase else ""
    return (
        f": {straggler_named(straggler)} {verb} {format_time(straggler.longer_s)} more "
        f"per step than others do{phase}, in {straggler.slowest_in} of {straggler.stretches} equal "
        f"parts of the run: {look}; {at_most}"
    )


def _spans_hosts(case: Case) -> bool:
    """Tell whether the nodes are machines, and not simulated on one."""
    return case.cell.nodes > 1 and case.runs[0].num_hosts != 1


def _times(share: float) -> str:
    """Return the speed-up where this share of the time goes."""
    times = 1 / (1 - min(share, _NEARLY_ALL))
    return f"{times:.{1 if times >= _PLAINLY_MORE else 2}f} times as fast"
