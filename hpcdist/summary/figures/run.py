"""The figures of one run, from those of its ranks in all attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import Struct

from hpcdist.base.text import listed, number_of
from hpcdist.bench.cells import summarize
from hpcdist.job.goal import Quantity
from hpcdist.runs.events import PHASES, ClockSet, End, Evaluation, Memory, Note, PeerGroup
from hpcdist.runs.spec import Accounting
from hpcdist.runs.verdict import State
from hpcdist.summary.figures import timing
from hpcdist.summary.figures.learning import learning_of, list_bests, list_learned
from hpcdist.summary.figures.peers import find_together
from hpcdist.summary.figures.rank import RankFigures, largest
from hpcdist.summary.figures.shares import COMMUNICATION_PHASE, held_up_by, parts_of_run
from hpcdist.summary.figures.stragglers import change_of, pauses_of
from hpcdist.summary.figures.timeline import (
    cost_by_events,
    count_steps,
    list_attempts,
    lost_time_s,
    startup_s,
    waited_s,
    with_accounting,
)
from hpcdist.summary.figures.timing import OTHER, StepTotals
from hpcdist.summary.figures.usage import Usage, flop_rate
from hpcdist.summary.read.collect import RunRecord
from hpcdist.summary.values import (
    AttemptSummary,
    Final,
    ModelStates,
    Parting,
    RanWith,
    RunFigures,
    VerdictSummary,
)

OWN_CODE = ("script", "module", "program", "function")
"""Workloads whose loop is the user's own."""


T = TypeVar("T")


class MeasuredRun(Struct, frozen=True, kw_only=True):
    """A run in figures, with what must be equal for a comparison to mean something."""

    figures: RunFigures
    conditions: dict[str, Any]
    """By dotted key, as in the job file; lists whole."""
    missing: str | None
    """Why there is no throughput."""
    unfit: str | None = None
    """Why its speed says nothing beside that of others, though it is known."""
    set_aside: str | None = None
    """Why it is not compared, though it could be; set where runs are put beside each other."""
    bests: bytes
    """Its `Bests` as msgpack, which only goals decode."""
    series: bytes
    """Its `Learning` as msgpack, which only pictures decode."""
    cpus_per_rank: float | None = None
    """Below 1 where ranks share CPUs."""


def measure_run(
    record: RunRecord,
    ranks: Sequence[RankFigures],
    usage: Usage,
    *,
    parting: Parting | None,
) -> MeasuredRun:
    """Compute the figures of a run; its state is that of its verdict.

    Steps that were done again after a restart count as work (throughput, step time) and once as
    progress (steps, epochs): progress is what the newest attempt that stepped says.
    """
    num_nodes, gpus, world_size = _size(record, ranks)
    attempts = list_attempts(record, ranks)
    with_events = [attempt for attempt in attempts if attempt.ranks]
    # How far the run is, the newest attempt tells that came as far as a step or a checkpoint.
    stepped = [attempt for attempt in with_events if attempt.first_step is not None]
    newest = [*with_events, *stepped][-1].ranks if with_events else []
    # The rate of a part of the ranks is not that of the run, and a guess at the rest is no figure.
    spans = [[own.spans for own in attempt.ranks if own.spans] for attempt in attempts]
    sizes = [largest(own.start.world_size for own in each.ranks) or world_size for each in attempts]
    complete = [own for own, size in zip(spans, sizes, strict=True) if len(own) >= size]
    full = [own for own in complete if len(own) >= world_size]
    steppers = [
        (size, timing.stepped_s(own)) for own, size in zip(spans, sizes, strict=True) if own
    ]
    share, times = shrinking(steppers, world_size)
    totals = timing.merged(own.totals for own in ranks)
    step_time_s = timing.step_time(totals)
    num_steps, num_lost = count_steps(attempts)
    lost_s = lost_time_s(attempts, num_lost * (step_time_s.mean if step_time_s else 0.0))
    lowest = min((own.rank for own in ranks if own.totals.steps), default=None)
    num_cpus = _num_cpus(ranks)
    has_gpus = any((own.start.device or "").startswith("cuda") for own in ranks)
    together, why_apart = find_together(
        filter(None, (own.events.last(PeerGroup) for own in ranks)), world_size=world_size
    )
    is_apart = together is False
    rotating_s, straggler = (0.0, None) if is_apart else held_up_by(attempts, world_size)
    parts_s = None
    if step_time_s:
        parts_s = parts_of_run(
            attempts,
            rotating_s=rotating_s,
            num_steps=num_steps,
            lost_s=lost_s or 0.0,
            are_apart=is_apart,
        )
    throughput = timing.throughput(complete)
    rate = throughput.mean if throughput else None
    ran_with = _ran_with(record, ranks, usage)
    evaluation = _newest(ranks, lambda own: own.events.last(Evaluation))
    ends = [end for own in ranks for end in own.events.all(End)]
    memories = filter(None, (own.events.last(Memory) for own in ranks))
    num_profiled = max((own.profiled_steps for own in ranks), default=0)
    profiled = number_of(num_profiled, "step")
    sweep, container, verdict = record.spec.sweep, record.spec.container, record.verdict
    has_variant = sweep is not None and sweep.variant is not None
    figures = RunFigures(
        run=record.id,
        job=record.facts.name,
        scheduler=record.scheduler,
        cluster=record.cluster,
        image=container.described if container else None,
        comparison=sweep.id if sweep and has_variant else None,
        variant=sweep.variant if sweep else None,
        ran_with=ran_with,
        state=verdict.state if verdict else None,
        nodes=num_nodes,
        gpus_per_node=gpus,
        world_size=world_size,
        num_cpus=num_cpus if any(own.start.device == "cpu" for own in ranks) else None,
        hosts=sorted({host for own in ranks if (host := own.start.host)}),
        together=together,
        parting=None if is_apart else parting,
        disturbed=usage.disturbance(),
        samples_per_s=throughput,
        samples_per_step=timing.samples_per_step(full or complete),
        warm_up_steps=(
            sum(own.warm_up_steps for own in ranks if own.totals.steps and own.rank == lowest)
            if step_time_s
            else None
        ),
        step_time_s=step_time_s,
        phase_s=_phase_s(totals, are_apart=is_apart) if step_time_s else None,
        parts_s=parts_s,
        flops=flop_rate(ranks, usage.begins.values(), samples_per_s=rate),
        computing_has_communication=(
            world_size > 1
            and not is_apart
            # A step of these may communicate and mark none of that.
            and (record.job.get("strategy") == "fsdp" or record.job.get("workload") in OWN_CODE)
            and "forward_backward" in totals.phases_s
            and COMMUNICATION_PHASE not in totals.phases_s
        ),
        straggler=straggler,
        final=Final(loss=evaluation.loss, accuracy=evaluation.accuracy) if evaluation else Final(),
        peak_rss_bytes=largest(end.max_rss_bytes for end in ends),
        peak_cuda_bytes=largest(end.max_cuda_bytes for end in ends),
        model_states=max(
            map(_model_states, memories), key=lambda own: own.total_bytes, default=None
        ),
        restarts=max(
            verdict.restarts if verdict else 0, *(attempt.number for attempt in attempts), 0
        ),
        steps=largest(own.last_step for own in newest),
        lost_steps=num_lost,
        startup_s=startup_s(attempts),
        lost_time_s=lost_s,
        waited_s=waited_s(attempts),
        mean_gpus=num_nodes * gpus * share if share < 1 else None,
        attempts=[
            AttemptSummary(
                attempt=attempt.number,
                life=attempt.life,
                first_step=attempt.first_step,
                last_step=attempt.last_step,
                nodes=largest(own.start.num_nodes for own in attempt.ranks),
                message=attempt.verdict.message if attempt.verdict else None,
            )
            for attempt in attempts
        ],
        epochs=largest(own.epochs for own in newest),
        train_loss=_newest(ranks, lambda own: own.train_loss),
        verdict=VerdictSummary(kind=verdict.kind, message=verdict.message, log=verdict.log)
        if verdict
        else None,
        benchmark=_newest(ranks, lambda own: summarize(own.events.events)),
        notes=[
            *dict.fromkeys(note.message for own in ranks for note in own.events.all(Note)),
            *_notes_on_clocks(ranks),
            *(
                [f"the profiler slowed down {profiled}, which are in no figure"]
                if num_profiled
                else []
            ),
            *(_notes_on_steps(newest) if verdict and verdict.state == "done" else []),
            *pauses_of(newest),
            *([f"its size changed: {times}"] if times else []),
            *change_of(newest),
        ],
        usage=usage.summarize(),
        cost=cost_by_events(
            attempts,
            lost_s=lost_s,
            num_gpus=num_nodes * gpus * share if has_gpus else None,
            num_cpus=usage.num_cpus() or num_cpus,
            price_per_hour=(record.spec.cluster.profile.price_per_hour or 0.0) * num_nodes * share
            or None,
        ),
        planned=record.spec.planned,
    )
    learned = list_learned(attempts)
    bests = {quantity: list_bests(learned, quantity) for quantity in get_args(Quantity)}
    num_stepped = len({own.rank for own in ranks if own.spans})
    missing = "it recorded no steps"
    if num_stepped:
        missing = f"only {num_stepped} of {world_size} ranks recorded steps"
    return MeasuredRun(
        figures=figures,
        conditions=flatten(record.job) | msgspec.structs.asdict(ran_with),
        missing=None if complete else missing,
        unfit=why_apart,
        bests=msgspec.msgpack.encode(bests),
        series=msgspec.msgpack.encode(learning_of(learned)),
        cpus_per_rank=num_cpus / len({own.rank for own in ranks}) if num_cpus else None,
    )


def shrinking(steppers: Sequence[tuple[int, float]], world_size: int) -> tuple[float, str]:
    """Return the mean share of its ranks that a run had as it stepped, and in words how much of the
    time it had how many; from the ranks of each attempt and the time that it stepped."""
    by_size: dict[int, float] = {}
    for size, time_s in steppers:
        by_size[size] = by_size.get(size, 0.0) + time_s
    total_s = sum(by_size.values())
    if len(by_size) < 2 or not total_s:
        return 1.0, ""
    share = sum(size * time_s for size, time_s in by_size.items()) / total_s / world_size
    words = (f"{time_s / total_s:.0%} with {size} ranks" for size, time_s in by_size.items())
    return share, f"of the time that it stepped, {', '.join(words)}"


def place_run(
    measured: MeasuredRun, path: Path, *, state: State | None, accounting: Accounting | None
) -> MeasuredRun:
    """Add what its files do not tell: where it is, and the scheduler's word on it, which a verdict
    overrules."""
    alone = measured.figures
    figures = msgspec.structs.replace(
        alone,
        path=str(path),
        state=alone.state or state,
        accounting=accounting,
        cost=with_accounting(alone.cost, accounting),
    )
    return msgspec.structs.replace(measured, figures=figures)


def _size(record: RunRecord, ranks: Sequence[RankFigures]) -> tuple[int, int, int]:
    """Return nodes, GPUs per node and world size: those that ran, or else those asked for; one
    process for several GPUs has those that it is for, on CPUs too."""
    requested, starts = record.facts.resources, [figures.start for figures in ranks]
    nodes = largest(start.num_nodes for start in starts) or requested.nodes
    gpus = largest(
        start.local_world_size * max(1, start.num_gpus or 1)  # a rank may drive several
        for start in starts
        if start.local_world_size is not None
    )
    if not gpus or _lacks_gpus(record, ranks):
        gpus = requested.gpus
    world_size = largest(start.world_size for start in starts) or nodes * gpus
    return nodes, gpus, world_size


def _lacks_gpus(record: RunRecord, ranks: Sequence[RankFigures]) -> bool:
    """Return whether one process was to drive several GPUs of its node, and there are none."""
    is_for_several = (
        record.job.get("strategy") == "data_parallel" and record.facts.resources.gpus > 1
    )
    return is_for_several and bool(ranks) and not any(own.start.num_gpus for own in ranks)


def _num_cpus(ranks: Sequence[RankFigures]) -> int | None:
    """Return the CPUs that all ranks may use, by the newest attempt of each; one that several are
    bound to counts once."""
    starts = {own.rank: own.start for own in sorted(ranks, key=lambda own: own.attempt)}.values()
    # Simulated nodes share a host.
    if bound_to := {(start.host, cpu) for start in starts for cpu in start.cpus or []}:
        return len(bound_to)
    return sum({start.node: start.num_cpus or 0 for start in starts}.values()) or None


def _phase_s(totals: StepTotals, *, are_apart: bool) -> dict[str, float]:
    """Return the mean seconds per step by phase, in the order of a step, then what is in none.

    Of ranks that train apart, none waits for another: what a script marked so is in no phase.
    """
    unknown = sorted(totals.phases_s.keys() - set(PHASES))
    phases = [phase for phase in (*PHASES, *unknown) if phase in totals.phases_s]
    if are_apart:
        phases = [phase for phase in phases if phase != COMMUNICATION_PHASE]
    phase_s = {phase: totals.phases_s[phase] / totals.steps for phase in phases}
    other_s = totals.sum_s / totals.steps - sum(phase_s.values())
    return {**phase_s, OTHER: max(0.0, other_s)}


def _notes_on_clocks(ranks: Sequence[RankFigures]) -> list[str]:
    """Return a note on each host whose clock was set while its ranks ran."""
    clocks = {own.start.host: clock for own in ranks if (clock := own.events.last(ClockSet))}
    return [
        f"the clock of {host or 'a host'} was set by {clock.shift_s:+,.0f} s while the run went "
        "on, or the machine slept; times are as if it had not been"
        for host, clock in clocks.items()
    ]


def _notes_on_steps(ranks: Sequence[RankFigures]) -> list[str]:
    """Return notes where some ranks of a finished attempt stopped before the others, or their
    events before their end."""
    last = {own.rank: own.last_step for own in ranks if own.spans and own.last_step is not None}
    most = max(last.values(), default=0)
    early = {step for step in last.values() if step < most}
    notes = [
        f"{listed([rank for rank in last if last[rank] == step])} recorded no step after step "
        f"{step:,}, and others went on to step {most:,}"
        for step in sorted(early)[:1]
    ]
    if cut := [rank.rank for rank in ranks if rank.spans and not rank.events.all(End)]:
        notes.append(f"the events of {listed(cut)} end without an end: later ones may be lost")
    return notes


def _model_states(memory: Memory) -> ModelStates:
    return ModelStates(
        parameter_bytes=memory.parameter_bytes,
        gradient_bytes=memory.gradient_bytes,
        optimizer_bytes=memory.optimizer_bytes,
        total_bytes=memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_bytes,
    )


def _ran_with(record: RunRecord, ranks: Sequence[RankFigures], usage: Usage) -> RanWith:
    devices = {figures.start.device.split(":")[0] for figures in ranks if figures.start.device}
    if _lacks_gpus(record, ranks):  # the number of its GPUs decides what it computes, not how fast
        devices = {f"{record.facts.resources.gpus} GPUs that are not there"}
    backends = {figures.start.backend for figures in ranks if figures.start.backend}
    if any(device.startswith("cuda") for device in devices):
        models = {gpu.name for begin in usage.begins.values() for gpu in begin.gpus}
    else:
        models = {begin.cpu_model for begin in usage.begins.values()}
    container = record.spec.container
    return RanWith(
        code=_newest(ranks, lambda own: own.start.code),
        device=", ".join(sorted(devices)) or None,
        device_model=", ".join(sorted(filter(None, models))) or None,
        cluster=record.cluster,
        scheduler=record.scheduler,
        backend=", ".join(sorted(backends)) or None,
        # That of an image is not known: spec.json has what was there at the submission.
        torch=None if container else record.spec.versions.get("torch"),
        image=container.identity if container else None,
    )


def flatten(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of all sections by their dotted keys; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _newest(ranks: Sequence[RankFigures], read: Callable[[RankFigures], T | None]) -> T | None:
    """Return the value of the newest attempt that has one, by its lowest rank."""
    ordered = sorted(ranks, key=lambda figures: (-figures.attempt, figures.rank))
    return next((value for value in map(read, ordered) if value is not None), None)
