"""The figures of one run, from those of its ranks in all attempts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from hpcdist.base.statistics import mean
from hpcdist.base.text import listed, number_of
from hpcdist.job.goal import Quantity
from hpcdist.runs.events import PHASES, Memory
from hpcdist.runs.spec import Accounting
from hpcdist.runs.verdict import State
from hpcdist.summary.figures import timing
from hpcdist.summary.figures.attempts import (
    Attempts,
    cost_by_events,
    list_attempts,
    list_spans,
    lost_steps,
    lost_time_s,
    waited_s,
    with_accounting,
)
from hpcdist.summary.figures.disturbance import find_other_loads
from hpcdist.summary.figures.goals import list_bests
from hpcdist.summary.figures.peers import find_together
from hpcdist.summary.figures.rank import RankFigures, Tested, largest
from hpcdist.summary.figures.shares import COMMUNICATION_PHASE, held_up_by, parts_of_run
from hpcdist.summary.figures.timing import OTHER, Spans, StepTotals
from hpcdist.summary.figures.usage import (
    NodeTotals,
    energy_per_sample_j,
    flop_rate,
    num_cpus_of,
    summarize_usage,
)
from hpcdist.summary.read.records import RunRecord
from hpcdist.summary.values import (
    Final,
    ModelStates,
    Parting,
    RankPace,
    RanWith,
    RunFigures,
    VerdictSummary,
)

OWN_CODE = ("script", "module", "program", "function")
"""Workloads whose loop is the user's own."""

_TESTED: tuple[Quantity, ...] = ("accuracy", "loss")
"""Quantities of the test data."""

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
    bests: dict[Quantity, list[Tested]] = {}
    """Each test that was better than all before it, from the first step on; without losses of
    training, which are read where they are a goal."""
    cpus_per_rank: float | None = None
    """Below 1 where ranks share CPUs."""


def measure_run(
    record: RunRecord,
    ranks: Sequence[RankFigures],
    nodes: Sequence[NodeTotals] = (),
    *,
    parting: Parting | None = None,
) -> MeasuredRun:
    """Compute the figures of a run; its state is that of its verdict.

    Steps that were done again after a restart count as work (throughput, step time) and once as
    progress (steps, epochs): progress is what the newest attempt that stepped says.
    """
    num_nodes, gpus, world_size = _size(record, ranks)
    attempts = _by(ranks, lambda figures: figures.attempt)
    stepped = [
        number
        for number, own in attempts.items()
        if any(figures.first_step is not None for figures in own)
    ]
    # How far the run is, the newest attempt tells that came as far as a step or a checkpoint.
    newest = attempts[max(stepped or attempts)] if attempts else []
    verdict, verdict_summary = record.verdict, None
    if verdict is not None:
        first, by = verdict.first, verdict.first or verdict
        verdict_summary = VerdictSummary(
            kind=verdict.kind,
            rank=first.rank if first else None,
            node=by.node,
            host=by.host,
            exit_code=by.exit_code,
            signal=by.signal,
            exception=first.report.exception if first else None,
            message=verdict.message,
            step=by.step,
            log=verdict.log,
        )
    complete = _complete_attempts(attempts, world_size)
    totals = timing.merged(figures.totals for figures in ranks)
    step_time_s = timing.step_time(totals)
    num_lost = lost_steps(attempts)
    again_s = num_lost * (step_time_s.mean if step_time_s else 0.0)
    spans = list_spans(record, attempts)
    lost_s = lost_time_s(spans, again_s)
    evaluation = _newest_of_lowest_rank(ranks, lambda figures: figures.evaluation)
    lowest = min((figures.rank for figures in ranks if figures.totals.steps), default=None)
    paces = _paces(ranks) if world_size > 1 else []
    num_cpus = _num_cpus(ranks)
    has_gpus = any((figures.start.device or "").startswith("cuda") for figures in ranks)
    groups = [figures.group for figures in ranks if figures.group is not None]
    together = find_together(groups, world_size=world_size)
    is_apart = together.is_so is False
    rotating_s, straggler = (0.0, None) if is_apart else held_up_by(attempts, world_size)
    parts_s = None
    if step_time_s:
        parts_s = parts_of_run(
            attempts,
            rotating_s=rotating_s,
            num_lost=num_lost,
            lost_s=lost_s or 0.0,
            are_apart=is_apart,
        )
    usage = summarize_usage(nodes)
    throughput = timing.throughput(complete)
    rate = throughput.mean if throughput else None
    loads = sorted(find_other_loads(nodes), key=lambda load: -load.others_busy)
    ran_with = _ran_with(record, ranks, nodes)
    summary = RunFigures(
        run=record.id,
        job=record.facts.name,
        scheduler=record.scheduler,
        cluster=record.cluster,
        image=record.container.described if record.container else None,
        comparison=record.comparison,
        variant=record.variant,
        ran_with=ran_with,
        state=verdict.state if verdict else None,
        nodes=num_nodes,
        gpus_per_node=gpus,
        world_size=world_size,
        num_cpus=num_cpus,
        num_hosts=len({host for own in ranks if (host := own.start.host)}) or None,
        together=together.is_so,
        parting=None if is_apart else parting,
        disturbed=next((load.sentence() for load in loads if load.takes_from_ranks), None),
        samples_per_s=throughput,
        samples_per_step=timing.samples_per_step(complete),
        warm_up_steps=(
            sum(own.warm_up_steps for own in ranks if own.totals.steps and own.rank == lowest)
            if step_time_s
            else None
        ),
        step_time_s=step_time_s,
        phase_s=_phase_s(totals, are_apart=is_apart) if step_time_s else None,
        parts_s=parts_s,
        flops=flop_rate(ranks, usage, samples_per_s=rate),
        energy_per_sample_j=energy_per_sample_j(usage, samples_per_s=rate),
        computing_has_communication=(
            world_size > 1
            and not is_apart
            and _could_hide_communication(record.job)
            and "forward_backward" in totals.phases_s
            and COMMUNICATION_PHASE not in totals.phases_s
        ),
        straggler=straggler,
        final=msgspec.convert(evaluation, Final, from_attributes=True) if evaluation else Final(),
        peak_rss_bytes=largest(figures.max_rss_bytes for figures in ranks),
        peak_cuda_bytes=largest(figures.max_cuda_bytes for figures in ranks),
        model_states=_model_states(ranks),
        # By whichever of the folder, the events and the verdict knows.
        restarts=max([0, record.newest_attempt, verdict.restarts if verdict else 0, *attempts]),
        steps=largest(figures.last_step for figures in newest),
        lost_steps=num_lost,
        lost_time_s=lost_s,
        waited_s=waited_s(spans),
        attempts=list_attempts(record, attempts),
        epochs=largest(figures.epochs for figures in newest),
        train_loss=_newest_of_lowest_rank(ranks, lambda figures: figures.train_loss),
        learning_rate=_newest_of_lowest_rank(ranks, lambda figures: figures.learning_rate),
        slowest_rank=max(paces, key=lambda pace: pace.own_time_s, default=None),
        fastest_rank=min(paces, key=lambda pace: pace.own_time_s, default=None),
        verdict=verdict_summary,
        benchmark=_newest_of_lowest_rank(ranks, lambda figures: figures.benchmark),
        notes=[
            *dict.fromkeys(note for figures in ranks for note in figures.notes),
            *_notes_on_displaced(ranks),
            *_notes_on_profiles(ranks, world_size),
            *(_notes_on_steps(newest) if verdict and verdict.state == "done" else []),
            *([together.why] if together.why and not is_apart else []),
        ],
        usage=usage,
        cost=cost_by_events(
            spans,
            lost_s=lost_s,
            num_gpus=num_nodes * gpus if has_gpus else None,
            num_cpus=num_cpus_of(nodes) or num_cpus,
            price_per_hour=record.price_per_hour and record.price_per_hour * num_nodes,
        ),
    )
    num_stepped = len({figures.rank for figures in ranks if figures.spans})
    missing = "it recorded no steps"
    if num_stepped:
        missing = f"only {num_stepped} of {world_size} ranks recorded steps"
    return MeasuredRun(
        figures=summary,
        conditions=flatten(record.job) | msgspec.structs.asdict(ran_with),
        missing=None if complete else missing,
        unfit=together.why if is_apart else None,
        bests={quantity: list_bests(attempts, quantity) for quantity in _TESTED},
        cpus_per_rank=_cpus_per_rank(ranks),
    )


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
    is_for_several = record.job.get("strategy") == DATA_PARALLEL and record.facts.resources.gpus > 1
    return is_for_several and bool(ranks) and not any(own.start.num_gpus for own in ranks)


def _num_cpus(ranks: Sequence[RankFigures]) -> int | None:
    """Simulated nodes share a host, so a CPU counts once however many ranks are bound to it."""
    starts = [figures.start for figures in ranks if figures.start.device == "cpu"]
    if bound_to := {(start.host, cpu) for start in starts for cpu in start.cpus or []}:
        return len(bound_to)
    return sum({start.node: start.num_cpus or 0 for start in starts}.values()) or None


def _cpus_per_rank(ranks: Sequence[RankFigures]) -> float | None:
    """Return the mean over the ranks; a CPU that several are bound to counts once."""
    starts = {figures.rank: figures.start for figures in ranks}.values()
    bound = [start for start in starts if start.cpus]
    cpus = {(start.host, cpu) for start in bound for cpu in start.cpus or []}
    if bound:
        return len(cpus) / len(bound)
    shares = [
        start.num_cpus / start.local_world_size
        for start in starts
        if start.num_cpus and start.local_world_size
    ]
    return mean(shares) if shares else None


def _complete_attempts(attempts: Attempts, world_size: int) -> list[list[Spans]]:
    """Return the spans by rank of every attempt in which every rank recorded steps.

    The rate of a part of the ranks is not that of the run, and a guess at the rest is no figure.
    """
    stepped = [
        [figures.spans for figures in attempts[number] if figures.spans]
        for number in sorted(attempts)
    ]
    return [ranks for ranks in stepped if len(ranks) >= world_size]


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


def _could_hide_communication(job: dict[str, Any]) -> bool:
    """Return whether a step of the job may communicate and mark none of that."""
    return job.get("strategy") == "fsdp" or job.get("workload") in OWN_CODE


def _paces(ranks: Sequence[RankFigures]) -> list[RankPace]:
    paces = []
    for rank, attempts in sorted(_by(ranks, lambda figures: figures.rank).items()):
        steps = sum(figures.totals.steps for figures in attempts)
        if steps:
            start = attempts[-1].start
            own_time_s = sum(figures.totals.own_time_s() for figures in attempts) / steps
            paces.append(
                RankPace(rank=rank, node=start.node, host=start.host, own_time_s=own_time_s)
            )
    return paces if len(paces) > 1 else []  # the only one is neither the slowest nor the fastest


def _notes_on_displaced(ranks: Sequence[RankFigures]) -> list[str]:
    """Return a note where files of events have changed since they were written, for all of them."""
    changed = [figures for figures in ranks if figures.num_displaced]
    if not changed:
        return []
    number = number_of(sum(figures.num_displaced for figures in changed), "window")
    whose = listed(sorted({figures.rank for figures in changed}))
    what = f"{number} of steps out of order, there twice or missing"
    note = f"the events of {whose} are not as they were written ({what})"
    return [f"{note}; each window counts once, in its order"]


def _notes_on_steps(ranks: Sequence[RankFigures]) -> list[str]:
    """Return a note where some ranks of a finished attempt stopped before the others."""
    last = {own.rank: own.last_step for own in ranks if own.spans and own.last_step is not None}
    most = max(last.values(), default=0)
    early = {step for step in last.values() if step < most}
    return [
        f"{listed([rank for rank in last if last[rank] == step])} recorded no step after step "
        f"{step:,}, and others went on to step {most:,}"
        for step in sorted(early)[:1]
    ]


def _notes_on_profiles(ranks: Sequence[RankFigures], world_size: int) -> list[str]:
    """Return a note where the profiler has slowed steps down."""
    profiled = [figures for figures in ranks if figures.profiled_steps]
    if not profiled:
        return []
    whose = sorted({figures.rank for figures in profiled})
    num_steps = max(figures.profiled_steps for figures in profiled)
    note = (
        f"the profiler slowed down {number_of(num_steps, 'step')} of {listed(whose)}, which are in "
        "no figure"
    )
    if len(whose) < world_size:
        note += "; where other ranks waited for them, that time counts"
    return [note]


def _model_states(ranks: Sequence[RankFigures]) -> ModelStates | None:
    def total(memory: Memory) -> int:
        return memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_bytes

    memories = [figures.memory for figures in ranks if figures.memory]
    fullest = max(memories, key=total, default=None)
    if fullest is None:
        return None
    return ModelStates(
        parameter_bytes=fullest.parameter_bytes,
        gradient_bytes=fullest.gradient_bytes,
        optimizer_bytes=fullest.optimizer_bytes,
        total_bytes=total(fullest),
    )


def _ran_with(
    record: RunRecord, ranks: Sequence[RankFigures], nodes: Sequence[NodeTotals]
) -> RanWith:
    devices = {figures.start.device.split(":")[0] for figures in ranks if figures.start.device}
    if _lacks_gpus(record, ranks):  # the number of its GPUs decides what it computes, not how fast
        devices = {f"{record.facts.resources.gpus} GPUs that are not there"}
    backends = {figures.start.backend for figures in ranks if figures.start.backend}
    if any(device.startswith("cuda") for device in devices):
        models = {gpu.facts.name for node in nodes for gpu in node.gpus}
    else:
        models = {node.begin.cpu_model for node in nodes if node.begin}
    return RanWith(
        code=_newest_of_lowest_rank(ranks, lambda figures: figures.code),
        device=", ".join(sorted(devices)) or None,
        device_model=", ".join(sorted(filter(None, models))) or None,
        cluster=record.cluster,
        scheduler=record.scheduler,
        backend=", ".join(sorted(backends)) or None,
        torch=record.torch_version,
        image=record.container.identity if record.container else None,
    )


DATA_PARALLEL = "data_parallel"
"""The strategy with one process for all GPUs of a node."""


def flatten(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of all sections by their dotted keys; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _by(ranks: Iterable[RankFigures], key: Callable[[RankFigures], int]) -> dict[int, Any]:
    groups: dict[int, list[RankFigures]] = defaultdict(list)
    for figures in ranks:
        groups[key(figures)].append(figures)
    return dict(groups)


def _newest_of_lowest_rank(
    ranks: Sequence[RankFigures], read: Callable[[RankFigures], T | None]
) -> T | None:
    """Return the value of the newest attempt that has one, by its lowest rank."""
    ordered = sorted(ranks, key=lambda figures: (-figures.attempt, figures.rank))
    return next((value for value in map(read, ordered) if value is not None), None)
