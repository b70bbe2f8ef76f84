"""The duration and the memory of a job, from the user's earlier runs, a probe, and torch's tracker.

A run took its startup, and the rest for its steps: what it did between them, such as evaluations,
is proportional to them. For another size the law of the forecast gives the speed. The interval is
that of one more run: t x sd x sqrt(1 + 1/n).

Torch's trackers know tensors alone: not the workspaces of cuDNN and NCCL, nor what the allocator
loses. So what they say is corrected by what earlier runs on such devices took of it. The memory of
scripts is known from their earlier runs alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from subprocess import SubprocessError
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdist.base.errors import HpcdistError
from hpcdist.base.progress import poll
from hpcdist.base.statistics import Interval, Measure, mean, measure
from hpcdist.base.text import number_of, show_bytes
from hpcdist.data.catalog import check_data
from hpcdist.data.trial import call_apart
from hpcdist.job.spec import TrainingJob, job_to_dict
from hpcdist.machine.memory import free_bytes
from hpcdist.monitor.states import run_accounting
from hpcdist.planning.when import round_limit
from hpcdist.runs.events import NodeBegin
from hpcdist.runs.run import Run, all_runs
from hpcdist.schedulers.request import as_limit, mem_gb_per_node
from hpcdist.submission.plan import PlannedRun, PlannedSubmission, plan_run
from hpcdist.submission.submit import submit
from hpcdist.summary import measuring
from hpcdist.summary.compare.forecast import make_forecast
from hpcdist.summary.compare.groups import NOT_COMPARED
from hpcdist.summary.compare.planned import peak_bytes
from hpcdist.summary.figures.run import MeasuredRun, place_run
from hpcdist.summary.read.event_file import read_events
from hpcdist.summary.values import RanWith, RunFigures, Size

_MOST_RUNS = 200
_PLACE = ("script", "module", "program", "data.root", *RanWith.__struct_fields__)
_LENGTH = ("train.epochs", "train.max_steps", "checkpoint")
_FREE = tuple(f"{key}." for key in (*NOT_COMPARED, *_LENGTH, *_PLACE) if key != "strategy")
"""Keys, and sections, that may differ between runs from which one time is computed."""
_WITHOUT_INTERVAL = 1.25
"""The longest time that a limit allows for, as a multiple of the mean."""
_MARGIN = 1.1
_TRACKER_LIMIT_S = 300.0


class Duration(Struct, frozen=True, kw_only=True):
    """The duration of a job."""

    time_s: Measure | None = None
    """With the interval of one more run; None: not known."""
    startup_s: float = 0.0
    source: str
    """Its source, or why it is not known."""
    runs: list[str] = []


class Memory(Struct, frozen=True, kw_only=True):
    """The memory of the rank of a job that uses most; None: not known."""

    device: str
    """cpu: all resident memory; cuda: what is allocated on a GPU."""
    estimate_bytes: float | None = None
    """By torch's tracker."""
    peak_bytes: float | None = None
    """Corrected by earlier runs, or from these alone."""
    room_bytes: float | None = None
    """Memory that the rank has."""
    largest_batch: int | None = None
    """Largest train.batch_size that fits."""
    source: str
    """Its source, or why it is not known."""


def read_earlier(folder: Path) -> list[MeasuredRun]:
    """Return the newest runs in figures, with the books on those that had a plan."""
    runs = all_runs(folder)[-_MOST_RUNS:]
    found = measuring.find_measurements(runs, uses_kept=True)
    pairs = [(run, one.run) for run, one in zip(runs, found, strict=True) if one.run]
    books = run_accounting([run for run, one in pairs if one.figures.planned])
    return [
        place_run(one, run.path, state=None, accounting=books.get(run.id)) for run, one in pairs
    ]


def device_of(planned: PlannedRun) -> str:
    """Return cpu or cuda: as a scheduler is asked, or as this machine has it."""
    is_here, plan = planned.scheduler.runs_here, planned.plan
    return "cuda" if (plan.launch.device == "cuda" if is_here else plan.asks_for_gpus) else "cpu"


def at_its_place(runs: Sequence[MeasuredRun], planned: PlannedRun) -> list[MeasuredRun]:
    """Return the runs on the same device of the same cluster: others say nothing about a job."""
    is_cuda, cluster = device_of(planned) == "cuda", planned.cluster.name
    there = [run for run in runs if run.figures.scheduler == planned.scheduler.name]
    # The device of DataParallel without its GPUs is neither.
    there = [run for run in there if (run.figures.ran_with.device == "cuda") == is_cuda]
    return [run for run in there if cluster in {None, run.figures.cluster}]


def count_steps(job: TrainingJob) -> int:
    """Return the optimizer steps of a training, by the size of its data."""
    train, num_gpus = job.train, job.resources.nodes * job.resources.gpus
    in_step = train.batch_size * num_gpus * train.accumulate
    steps = train.epochs * math.ceil(check_data(job.data).train / in_step)
    return min(steps, train.max_steps or steps)


def is_like(run: MeasuredRun, asked: Mapping[str, Any]) -> bool:
    """Return whether a run is done and of these settings, but for its size and length."""
    known, figures = run.conditions, run.figures
    if figures.job != asked["name"] or figures.state != "done" or figures.cost is None:
        return False
    keys = [key for key in {**known, **asked} if not f"{key}.".startswith(_FREE)]
    return all((known.get(key) or None) == (asked.get(key) or None) for key in keys)


def find_duration(
    runs: Sequence[MeasuredRun], asked: Mapping[str, Any], wanted: Size, steps: int | None
) -> Duration:
    """Return the time of a job with these conditions, by dotted key, and of this size, from those
    of the runs that are like it; `steps`: None for as many as they did."""
    alike = [run.figures for run in runs if is_like(run, asked)]
    alike = [run for run in alike if run.steps or not steps]
    same = [run for run in alike if run.size == wanted]
    used = same or [run for run in alike if steps and run.rate]
    if not used:
        hint = "; --probe 20 tries it here" if steps else ""
        return Duration(source=f"no run of this job with these settings is done{hint}")
    startup_s = mean(run.startup_s or 0.0 for run in used)
    if same:
        time_s = measure([(run.startup_s or 0.0) + _working_s(run, steps) for run in same])
        if ends := time_s.interval:  # that of the mean; one more run has a wider one
            half_s = (ends.high - time_s.mean) * math.sqrt(len(same) + 1)
            ends = Interval(low=max(0.0, time_s.mean - half_s), high=time_s.mean + half_s)
        source = f"from {number_of(len(same), 'run')} of this size"
    else:
        forecast = make_forecast(used, "weak", asked=wanted)
        if not forecast.sizes:
            return Duration(source=f"no run has this size, and {forecast.refused_because}")
        speedup, smallest = forecast.sizes[0].speedup, min(run.size for run in used)
        alone_s = mean(_working_s(run, steps) for run in used if run.size == smallest)
        work_s = alone_s * wanted.gpus / smallest.gpus
        time_s = Measure(mean=startup_s + work_s / speedup.mean)
        if ends := speedup.interval:
            ends = Interval(low=startup_s + work_s / ends.high, high=startup_s + work_s / ends.low)
        source = f"by the law of the forecast, from {number_of(len(used), 'run')} of other sizes"
    found = Duration(startup_s=startup_s, source=source, runs=[run.run for run in used])
    return replace(found, time_s=replace(time_s, interval=ends))


def _working_s(run: RunFigures, steps: int | None) -> float:
    """Return the time after the startup for so many steps, None: as many as it did, without what
    restarts lost."""
    held_s = run.cost.held_s if run.cost else 0.0
    working_s = max(0.0, held_s - (run.startup_s or 0.0) - (run.lost_time_s or 0.0))
    return working_s * (steps / run.steps if steps and run.steps else 1.0)


def probe(planned: PlannedRun, probe_s: float, steps: int | None) -> Duration:
    """Run the job here for some seconds, with one rank, and say how long its steps would take."""
    if steps is None:
        return Duration(source="a probe is of no use: only a trainer tells how many steps it takes")
    try:
        resources = replace(planned.loaded.job.resources, nodes=1, gpus=1)
        loaded = planned.loaded.with_job(resources=resources)
        with TemporaryDirectory(prefix="hpcdist-probe-", ignore_cleanup_errors=True) as own:
            there = plan_run(loaded, scheduler="local", snapshot=False)
            there.prepare()
            (run,) = submit(PlannedSubmission(plans=[there]), runs=Path(own)).runs
            try:
                verdict = poll(run.read_verdict, interval_s=0.2, limit_s=probe_s)
            finally:  # also after Ctrl-C
                there.scheduler.cancel([run])
            found = measuring.measure(run).run
    except HpcdistError as error:
        return Duration(source=f"the probe failed: {error.message}")
    if verdict and verdict.state != "done":
        return Duration(source=f"the probe {verdict.sentence}")
    if found is None or not found.figures.step_time_s:
        return Duration(source="the probe recorded too few steps: give --probe more seconds")
    startup_s, step_s = found.figures.startup_s or 0.0, found.figures.step_time_s.mean
    source = f"{steps:,} steps at the pace of a probe: one rank here, without communication"
    time_s = Measure(mean=startup_s + steps * step_s)
    return Duration(time_s=time_s, startup_s=startup_s, source=source)


def suggest_limit_min(duration: Duration, *, warning_s: float) -> float | None:
    """Return a round time limit, in minutes, that is enough: the warning comes before its end."""
    if (time_s := duration.time_s) is None:
        return None
    longest_s = time_s.interval.high if time_s.interval else time_s.mean * _WITHOUT_INTERVAL
    return round_limit((longest_s * _MARGIN + warning_s) / 60, math.ceil)


def count_requeues(duration: Duration, *, limit_min: float | None, warning_s: float) -> int | None:
    """Return how often its time limit ends a job before it is done, which then goes on in another;
    None where one life leaves no time to work, or one of the times is not known."""
    each_s = (limit_min or 0) * 60 - warning_s - duration.startup_s
    if duration.time_s is None or each_s <= 0:
        return None
    return max(0, math.ceil((duration.time_s.mean - duration.startup_s) / each_s) - 1)


def find_memory(
    planned: PlannedRun, runs: Sequence[MeasuredRun], asked: Mapping[str, Any]
) -> Memory:
    """Return the memory of a job, by runs at its place; it takes some seconds, in which torch is
    imported beside."""
    job, device = planned.loaded.job, device_of(planned)
    room_bytes = _room(planned, runs, device)
    if not isinstance(job, TrainingJob):
        peaks = [peak for run in runs if is_like(run, asked) and (peak := peak_bytes(run.figures))]
        source = f"the most of {number_of(len(peaks), 'earlier run')}"
        source = source if peaks else "not known before its first run: it is not a trainer"
        most = max(peaks, default=None)
        return Memory(device=device, peak_bytes=most, room_bytes=room_bytes, source=source)
    strategy = asked.get("strategy")
    ratios = [
        (run.job == job.name, peak / run.planned.estimate_bytes)
        for run in (one.figures for one in runs if one.conditions.get("strategy") == strategy)
        if run.planned and run.planned.estimate_bytes and (peak := peak_bytes(run))
    ]
    counted = [ratio for is_own, ratio in ratios if is_own] or [ratio for _, ratio in ratios]
    factor, source = median(counted or [1.0]), "by torch's tracker"
    if counted:
        source += f", x {factor:.2f} as in {number_of(len(counted), 'earlier run')}"
    elif device == "cuda" or strategy == "fsdp":
        factor = 1.2
        source += ", and 20 % for what it misses: workspaces of libraries, fragmentation"
    question = (job_to_dict(job), device, room_bytes and room_bytes / factor)
    try:
        own = "hpcdist.planning.memory:track"
        estimate_bytes, batch = call_apart(own, question, limit_s=_TRACKER_LIMIT_S)
    except (SubprocessError, HpcdistError) as error:
        return Memory(device=device, room_bytes=room_bytes, source=f"not known: {error}")
    found = Memory(device=device, room_bytes=room_bytes, source=source, largest_batch=batch)
    return replace(found, estimate_bytes=estimate_bytes, peak_bytes=estimate_bytes * factor)


def _room(planned: PlannedRun, runs: Sequence[MeasuredRun], device: str) -> float | None:
    """Return the memory that a rank has; on GPUs as the newest run there saw it."""
    job = planned.loaded.job
    if device == "cuda":
        files = [one for run in runs for one in Run(Path(str(run.figures.path))).usage_files()]
        events = (read_events(path, number=n, attempt=of) for n, of, path in reversed(files))
        begins = filter(None, (one.last(NodeBegin) for one in events))
        sizes = (gpu.memory_bytes for one in begins for gpu in one.gpus)
        return next(filter(None, sizes), None)
    if (mem_gb := mem_gb_per_node(job, planned.plan.cluster)) is not None:
        return mem_gb * 1e9 / job.ranks_per_node
    return free_bytes() / job.num_ranks if planned.scheduler.runs_here else None


# As people read it.


def time_lines(duration: Duration, limits: dict[str, Any]) -> Iterator[str]:
    """Yield how long a job takes, and what its time limit means for it."""
    if duration.time_s is None:
        yield f"not known: {duration.source}"
        return
    ends, enough = duration.time_s.interval, f"--time {as_limit(limits['enough_min'])} is enough"
    interval = f" ({as_limit(ends.low / 60)} to {as_limit(ends.high / 60)})" if ends else ""
    yield f"{as_limit(duration.time_s.mean / 60)}{interval}, {duration.source}"
    if limits["limit_min"] is None:
        yield enough
        return
    requeues, how = limits["requeues"], "suffices"
    if requeues is None:
        how = "leaves no time to work"
    elif requeues:
        times = f", requeued {number_of(requeues, 'time')}" if limits["is_requeued"] else ""
        how = f"ends it before it is done{times}"
    yield f"its limit of {as_limit(limits['limit_min'])} {how}; {enough}"


def memory_lines(memory: Memory, batch_size: int | None) -> Iterator[str]:
    """Yield whether a job fits, and what of its batch would."""
    if memory.peak_bytes is not None:
        room, where = memory.room_bytes, "on the GPU" if memory.device == "cuda" else "resident"
        whole = "" if room is None else f" of {show_bytes(room)}"
        how = ": it fits" if memory.peak_bytes <= (room or 0) else ": IT DOES NOT FIT"
        yield f"{show_bytes(memory.peak_bytes)}{whole} per rank, {where}{how if room else ''}"
    yield memory.source
    if memory.largest_batch is not None:
        largest = f"about {memory.largest_batch:,}" if memory.largest_batch else "none"
        yield f"largest train.batch_size that fits: {largest}, and {batch_size:,} is asked"
