"""Advice on what to change, in plain words with its figures: only what fits the case, and pays.

Each kind of loss has its adviser, which knows the job's settings, and says nothing where it knows
nothing better. What could be won goes by the measured share of the time (Amdahl): where a part that
is the share p goes altogether, all is 1 / (1 - p) times as fast at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hpcdist.base.text import format_time, number_of, shown, whole_percents
from hpcdist.summary.figures.shares import (
    CHECKPOINTS,
    COMMUNICATION,
    DATA,
    DEVICE,
    FIXED,
    RESTARTS,
    STRAGGLERS,
    UNDIVIDED,
)
from hpcdist.summary.values import Losses, RunFigures, Straggler

MOST = 2
"""What is said first is what people do."""
_WORTH_ADVICE = 0.05
"""Of the time: for less nobody changes a job."""
_WORTH_HALVING = 0.1
"""The same, for what can be made half at best."""
_PLAINLY_MORE = 1.2
_SAVING_SHARE = 0.01
"""Of the time that saving may take: then it is no concern."""
_SELDOMER = 10
_NEARLY_ALL = 0.99
_MOST_WORKERS_MORE = 2
"""Times as many workers as there are: more at once is a guess."""
_IN_MEMORY = {"digits", "mnist", "fashion_mnist", "cifar10"}
_OWN_LOOPS = ("script", "module", "program", "function")


class Case(NamedTuple):
    """Runs of one size, and the job that they ran."""

    job: Mapping[str, Any]
    """By dotted key, as in the job file."""
    losses: Losses
    runs: Sequence[RunFigures]
    cpus_per_rank: float | None


def advise(case: Case) -> list[str]:
    """Return the most worthwhile advice, largest share first; empty where nothing is worth it."""
    shares = case.losses.shares
    percents = dict(zip(shares, whole_percents(list(shares.values())), strict=True))
    worth = sorted(
        (part for part in _ADVISERS if shares[part] >= _WORTH_ADVICE),
        key=lambda part: -shares[part],
    )
    advice = (_ADVISERS[part](case, percents[part] / 100) for part in worth)
    return [text for text in advice if text][:MOST]


def straggler_named(straggler: Straggler) -> str:
    """Name a straggler: `rank 3 (node 1, host n17)`, `all ranks of node 1 (host n17)`."""
    where = [] if straggler.node is None or straggler.rank is None else [f"node {straggler.node}"]
    where += [f"host {shown(straggler.host)}"] if straggler.host else []
    who = f"rank {straggler.rank}"
    if straggler.rank is None:
        who = f"all ranks of node {straggler.node}"
    return f"{who} ({', '.join(where)})" if where else who


def _data(case: Case, share: float) -> str | None:
    so_much = f"data wait is {_percent(share)} of the time"
    most = _at_most(share)
    cpus = _cpus(case)
    workers = case.job.get("data.workers")
    if not isinstance(workers, int):  # a script has its own loader
        have = f" (a rank has {number_of(cpus, 'CPU')})" if cpus else ""
        return f"{so_much}: let more workers of its DataLoader read{have}; {most}"
    if case.job.get("data.name") in _IN_MEMORY and case.job.get("data.transform") == "none":
        in_memory = "its data are in memory, and need none: data.workers=0"
        return f"{so_much} at {number_of(workers, 'worker')}: {in_memory}" if workers else None
    if cpus is None:
        return f"{so_much} at {number_of(workers, 'worker')}: try more (data.workers); {most}"
    at = f"{so_much} at {number_of(workers, 'worker')} on {number_of(cpus, 'CPU')} per rank"
    if workers < cpus:
        more = min(cpus, max(1, _MOST_WORKERS_MORE * workers))
        return f"{at}: try data.workers={more}; {most}"
    return f"{at}, so that more workers would not help: {_less_reading(case)}; {most}"


def _less_reading(case: Case) -> str:
    job = case.job
    if job.get("data.cache") is False:
        return "keep the decoded data in memory (data.cache=auto)"
    if job.get("data.decoder") == "exact" and job.get("data.name") in {"faces", "image_folder"}:
        return "try data.decoder=fast, smaller images (data.size) or more CPUs per rank"
    return "give each rank more CPUs (resources.cpus_per_gpu), or make reading a sample cheaper"


def _device(case: Case, share: float) -> str | None:
    so_much = f"bringing batches to the device is {_percent(share)} of the time"
    most = _at_most(share)
    if case.job.get("data.handover") == "float32":
        return f"{so_much}: data.handover=uint8 moves a quarter of the bytes; {most}"
    if case.job.get("data.pin_memory") is False:
        return f"{so_much}: try data.pin_memory=auto; {most}"
    if case.job.get("workload") in _OWN_LOOPS:
        return (
            f"{so_much}: pin_memory=True in its DataLoader, and .to(device, non_blocking=True);"
            f" {most}"
        )
    return None


def _communication(case: Case, share: float) -> str | None:
    is_alone = case.runs[0].world_size == 1
    if share < _WORTH_HALVING or _shares_cpus(case) or is_alone:  # then it waits for no network
        return None
    so_much = f"exposed communication is {_percent(share)} of the time"
    gain = f"about {_times(share / 2)}, at most {_times(share)} if it went altogether"
    check = ""
    if case.losses.nodes > 1:
        check = "; `hpcdist submit allreduce` measures the network between the nodes"
    accumulate = case.job.get("train.accumulate")
    if isinstance(accumulate, int):
        batch = f"train.batch_size={2 * case.job['train.batch_size']}"
        twice = f"train.accumulate={2 * accumulate}"
        return f"{so_much}: {twice} or {batch} communicates half as often: {gain}{check}"
    return f"{so_much}: twice the batch per rank communicates half as often: {gain}{check}"


def _stragglers(case: Case, share: float) -> str | None:
    so_much = f"waiting for the slowest rank is {_percent(share)} of the time"
    straggler = case.losses.straggler
    if straggler is None and _shares_cpus(case):  # the conclusion says that, and it is why
        return None
    if straggler is None:
        return (
            f"{so_much}, but none is for certain the slowest throughout: batches may take "
            "unequally long, or something else uses the CPUs now and then"
        )
    verb = "need" if straggler.rank is None else "needs"
    leave = ", or leave that node out" if case.losses.nodes > 1 else ""
    look = f"look for what slows it down there{leave}"
    if straggler.host is None:
        look = "it is so on other hosts too, so look at what that rank does"
    return (
        f"{so_much}: {straggler_named(straggler)} {verb} {format_time(straggler.longer_s)} more "
        f"per step than others do, in {straggler.slowest_in} of {straggler.stretches} stretches of "
        f"the run: {look}; "
        f"{_at_most(share)}"
    )


def _fixed(case: Case, share: float) -> str | None:
    if share < _WORTH_HALVING:
        return None
    batch = case.job.get("train.batch_size")
    so_much = (
        f"the fixed cost of a step (optimizer and all between) is {_percent(share)} of the time"
    )
    gain = f"about {_times(share / 2)}"
    if isinstance(batch, int):
        return f"{so_much}: it weighs half as much with train.batch_size={2 * batch}: {gain}"
    return f"{so_much}: it weighs half as much with batches of twice the size: {gain}"


def _checkpoints(case: Case, share: float) -> str | None:
    so_much = f"saving checkpoints is {_percent(share)} of the time"
    for unit, end in (("steps", _steps(case)), ("epochs", _epochs(case))):
        every = case.job.get(f"checkpoint.every_{unit}")
        if every:
            less = _save_less(unit, every, end, share)
            often = unit[:-1] if every == 1 else f"{every} {unit}"
            return less and f"{so_much}, one for every {often}: {less}"
    if case.job.get("workload") in _OWN_LOOPS:
        return f"{so_much}: save less often; {_at_most(share)}"
    return None


def _save_less(unit: str, every: int, end: int, share: float) -> str | None:
    """A failure must not cost more than is won, so that a tenth as often has to do."""
    wanted = every * math.ceil(min(share / _SAVING_SHARE, _SELDOMER))
    new = min(_round_up(wanted), end)
    if new <= every:
        return None
    gain = 1 / (1 - share + share * every / new)
    return (
        f"checkpoint.every_{unit}={new} would give about {_as_fast(gain)}, though then a failure "
        f"costs up to {new} {unit}"
    )


def _restarts(case: Case, share: float) -> str | None:
    run = max(case.runs, key=lambda run: run.lost_time_s or 0.0)
    why = next((attempt.message for attempt in run.attempts if attempt.message), None)
    times = number_of(run.restarts, "restart")
    text = (
        f"restarts are {_percent(share)} of the time: {times} cost {run.lost_time_s or 0.0:,.1f} s"
    )
    if run.lost_steps:
        text += f", with {number_of(run.lost_steps, 'step')} done again"
    which = "" if run.restarts == 1 else "the first one "
    return f"{text}, {which}because {shown(why)}" if why else text


def _undivided(case: Case, share: float) -> str | None:
    if case.job.get("workload") not in _OWN_LOOPS:
        return None
    return (
        f"{_percent(share)} of the time is in no phase, so that its cause is not known: "
        "record.start(model=model) before the loop divides it"
    )


def _percent(share: float) -> str:
    return f"{round(100 * share)} %"


def _at_most(share: float) -> str:
    return f"would give at most {_times(share)}"


def _times(share: float) -> str:
    """The speed-up where this share of the time goes."""
    return _as_fast(1 / (1 - min(share, _NEARLY_ALL)))


def _as_fast(times: float) -> str:
    return f"{times:.{1 if times >= _PLAINLY_MORE else 2}f} times as fast"


def _shares_cpus(case: Case) -> bool:
    return case.cpus_per_rank is not None and case.cpus_per_rank < 1


def _cpus(case: Case) -> int | None:
    return None if case.cpus_per_rank is None else max(1, math.floor(case.cpus_per_rank))


def _steps(case: Case) -> int:
    return max((run.steps or 0 for run in case.runs), default=0)


def _epochs(case: Case) -> int:
    return max((run.epochs or 0 for run in case.runs), default=0)


def _round_up(value: int) -> int:
    """To two digits: nobody saves every 1,237 steps."""
    unit: int = 10 ** max(0, len(str(value)) - 2)
    return math.ceil(value / unit) * unit


_ADVISERS: dict[str, Callable[[Case, float], str | None]] = {
    DATA: _data,
    DEVICE: _device,
    COMMUNICATION: _communication,
    STRAGGLERS: _stragglers,
    FIXED: _fixed,
    CHECKPOINTS: _checkpoints,
    RESTARTS: _restarts,
    UNDIVIDED: _undivided,
}
