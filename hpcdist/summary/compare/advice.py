"""Advice on what to change, in plain words with its figures: only what fits the case, and pays.

Each kind of loss has its adviser, which knows the job's settings, and says nothing where it knows
nothing better. What could be won goes by the measured share of the time (Amdahl): where a part that
is the share p goes altogether, all is 1 / (1 - p) times as fast at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
_SAVING_SHARE = 0.01
"""Share of the time that saving checkpoints may take without concern."""
_SELDOMER = 10
_NEARLY_ALL = 0.99
_SAME = 0.005
"""Largest difference between two shares that are the same to a reader of whole percents."""
_IN_MEMORY = {"digits", "mnist", "fashion_mnist"}


class Case(NamedTuple):
    """Runs of one size, and the job that they ran."""

    job: Mapping[str, Any]
    """By dotted key, as in the job file."""
    cell: Cell
    runs: Sequence[RunFigures]
    cpus_per_rank: float | None

    @property
    def has_own_loop(self) -> bool:
        """Return whether the user's own code trains."""
        return self.job.get("workload") in OWN_CODE

    @property
    def is_over_hosts(self) -> bool:
        """Return whether its nodes are machines, and not simulated on one."""
        return self.cell.nodes > 1 and self.runs[0].num_hosts != 1

    @property
    def shares_cpus(self) -> bool:
        """Return whether there are more ranks than CPUs."""
        return self.cpus_per_rank is not None and self.cpus_per_rank < 1


def advise(case: Case) -> list[str]:
    """Return the most worthwhile advice, largest share first; empty where nothing is worth it."""
    shares, lost = case.cell.shares or {}, case.cell.lost or {}
    percents = whole_percents(shares)
    told = whole_percents(lost)  # stand before the advice: there are no two numbers for one share
    percents |= {name: told[name] for name in told if abs(lost[name] - shares[name]) < _SAME}
    texts = []
    for name in sorted(_ADVISERS, key=lambda name: -shares[name]):
        so_much, adviser = _ADVISERS[name]
        advice = adviser(case, percents[name] / 100) if shares[name] >= _WORTH_ADVICE else None
        if advice is not None:
            texts.append(so_much.format(f"{percents[name]} % of the time") + advice)
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


def _data(case: Case, share: float) -> str | None:
    job, workers = case.job, case.job.get("data.workers")
    cpus = None if case.cpus_per_rank is None else max(1, math.floor(case.cpus_per_rank))
    if not isinstance(workers, int):  # a script has its own loader
        have = f" (a rank has {number_of(cpus, 'CPU')})" if cpus else ""
        return f": use more workers in its DataLoader{have}; {_at_most(share)}"
    at = f" at {number_of(workers, 'worker')}"
    if job.get("data.name") in _IN_MEMORY and job.get("data.transform") == "none":
        in_memory = "its data are in memory and need no workers: data.workers=0"
        return f"{at}: {in_memory}" if workers else None
    if cpus is None:
        return f"{at}: try more (data.workers); {_at_most(share)}"
    at += f" on {number_of(cpus, 'CPU')} per rank"
    if workers < cpus:  # twice as many: more at once is a guess
        more = min(cpus, max(1, 2 * workers))
        return f"{at}: try data.workers={more}; {_at_most(share)}"
    less = "give each rank more CPUs (resources.cpus_per_gpu), or make reading a sample cheaper"
    if job.get("data.decoder") == "exact" and job.get("data.name") in {"faces", "image_folder"}:
        less = "try data.decoder=fast, smaller images (data.size) or more CPUs per rank"
    return f"{at}, so that more workers would not help: {less}; {_at_most(share)}"


def _device(case: Case, share: float) -> str | None:
    if case.job.get("data.pin_memory") is False:
        return f": try data.pin_memory=auto; {_at_most(share)}"
    pinned = "pin_memory=True in its DataLoader, and .to(device, non_blocking=True)"
    return f": {pinned}; {_at_most(share)}" if case.has_own_loop else None


def _communication(case: Case, share: float) -> str | None:
    # One rank, and ranks that share CPUs, wait for no network.
    if share < _WORTH_HALVING or case.shares_cpus or case.runs[0].world_size == 1:
        return None
    accumulate, twice = case.job.get("train.accumulate"), "twice the batch per rank"
    if isinstance(accumulate, int):
        batch = f"train.batch_size={2 * case.job['train.batch_size']}"
        twice = f"train.accumulate={2 * accumulate} or {batch}"
    gain = f"about {_times(share / 2)}, at most {_times(share)} if it disappeared completely"
    check = "; `hpcdist submit allreduce` measures the network between the nodes"
    return f": {twice} communicates half as often: {gain}{check if case.is_over_hosts else ''}"


def _stragglers(case: Case, share: float) -> str | None:
    straggler = case.cell.straggler
    if straggler is None:
        unknown = (
            ", but no single rank is clearly the slowest: batches may take different times, or "
            "something else may use the CPUs now and then"
        )
        # The conclusion says that ranks share CPUs, and it is why.
        return None if case.shares_cpus else unknown
    where = f", {shown(straggler.host)}" if straggler.host else ""
    look = "look for what slows it down there"
    if straggler.others:
        look = "look for what they have in common, and mend all of them"
    elif straggler.host is None:
        look = "this happens on other hosts too, so look at what that rank does"
    elif case.is_over_hosts:
        look += ", or exclude that node"
    elif case.cell.nodes > 1:
        look = f"all nodes are simulated on one host{where}: look at the CPUs that it has there"
    verb = "need" if straggler.rank is None or straggler.others else "needs"
    phase = f" (most of it {straggler.phase.replace('_', ' ')})" if straggler.phase else ""
    return (
        f": {straggler_named(straggler)} {verb} {format_time(straggler.longer_s)} more "
        f"per step than others do{phase}, in {straggler.slowest_in} of {straggler.stretches} equal "
        f"parts of the run: {look}; {_at_most(share)}"
    )


def _fixed(case: Case, share: float) -> str | None:
    batch = case.job.get("train.batch_size")
    twice = f"train.batch_size={2 * batch}" if isinstance(batch, int) else "batches twice as large"
    half = f": it counts half as much with {twice}: about {_times(share / 2)}"
    return half if share >= _WORTH_HALVING else None


def _checkpoints(case: Case, share: float) -> str | None:
    """A failure must not cost more than is won, so that a tenth as often has to do."""
    for unit in ("steps", "epochs"):
        every = case.job.get(f"checkpoint.every_{unit}")
        if isinstance(every, int) and every > 0:
            wanted = every * math.ceil(min(share / _SAVING_SHARE, _SELDOMER))
            digit = 10 ** max(0, len(str(wanted)) - 2)  # nobody saves every 1,237 steps
            end = max((getattr(run, unit) or 0 for run in case.runs), default=0)
            new = min(math.ceil(wanted / digit) * digit, end)
            gain = _as_fast(1 / (1 - share + share * every / max(1, new)))
            often = unit[:-1] if every == 1 else f"{every} {unit}"
            text = (
                f", one for every {often}: checkpoint.every_{unit}={new} would give about {gain}, "
                f"but a failure then costs up to {new} {unit}"
            )
            return text if new > every else None
    return f": save less often; {_at_most(share)}" if case.has_own_loop else None


def _restarts(case: Case, share: float) -> str:  # noqa: ARG001
    run = max(case.runs, key=lambda run: run.lost_time_s or 0.0)
    why = next((attempt.message for attempt in run.attempts if attempt.message), None)
    text = f": {number_of(run.restarts, 'restart')} cost {run.lost_time_s or 0.0:,.1f} s"
    if run.lost_steps:
        text += f", with {number_of(run.lost_steps, 'step')} done again"
    which = "" if run.restarts == 1 else "the first one "
    return f"{text}, {which}because {shown(why)}" if why else text


def _undivided(case: Case, share: float) -> str | None:  # noqa: ARG001
    start = "call record.start(model=model) before the loop to divide it"
    return f", so its cause is not known: {start}" if case.has_own_loop else None


def _at_most(share: float) -> str:
    return f"would give at most {_times(share)}"


def _times(share: float) -> str:
    """Return the speed-up where this share of the time goes."""
    return _as_fast(1 / (1 - min(share, _NEARLY_ALL)))


def _as_fast(times: float) -> str:
    return f"{times:.{1 if times >= _PLAINLY_MORE else 2}f} times as fast"


_ADVISERS: dict[str, tuple[str, Callable[[Case, float], str | None]]] = {
    part.DATA: ("data wait is {}", _data),
    part.DEVICE: ("moving batches to the device is {}", _device),
    part.COMMUNICATION: ("exposed communication is {}", _communication),
    part.STRAGGLERS: ("waiting for the slowest rank is {}", _stragglers),
    part.FIXED: ("the fixed cost of a step (optimizer and everything in between) is {}", _fixed),
    part.CHECKPOINTS: ("saving checkpoints is {}", _checkpoints),
    part.RESTARTS: ("restarts are {}", _restarts),
    part.UNDIVIDED: ("{} is in no phase", _undivided),
}
"""By share: how the advice on it begins, and what says the rest; None where that knows nothing."""
