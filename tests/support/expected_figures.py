"""What docs/figures.md says of each figure, computed straight from the single steps of a history.

Nothing here is the product's: no sums of windows, no histograms, no clocks of hosts.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from expected_parts import expected_parts, expected_straggler
from measured_steps import (
    measured_steps,
    measured_windows,
    steps_by_rank,
    time_s,
    warm_up_steps,
    whole_attempts,
    written_windows,
)
from step_histories import Attempt, History, Pause, RankHistory, Step

_MOST_BLOCKS = 20


def expected_figures(history: History) -> dict[str, Any]:
    """By the keys of the summary, keys within keys joined by dots; percentiles are exact here."""
    every_step = [step for own in steps_by_rank(history.attempts).values() for step in own]
    begun = [one for one in history.attempts if _first_step(one) is not None]
    work = sum(_last_step(one) - one.first_step for one in begun)  # steps, however often done
    lost_steps = work - (_last_step(begun[-1]) - begun[0].first_step)
    step_s = statistics.mean(step.time_s for step in every_step)
    lost_time_s = _lost_time_s(history, lost_steps * step_s)
    parts = expected_parts(history, lost_time_s=lost_time_s, num_steps=work - lost_steps)
    evaluations = [
        rank.evaluations[-1]
        for attempt in reversed(history.attempts)
        for rank in attempt.ranks
        if rank.evaluations
    ]
    losses = [
        [step.loss for step in windows[-1].values()]
        for attempt in reversed(history.attempts)
        for windows in map(written_windows, attempt.ranks)
        if windows
    ]
    ranks = [rank for attempt in history.attempts for rank in attempt.ranks]
    return {
        "nodes": history.nodes,
        "gpus_per_node": history.ranks_per_node,
        "world_size": history.world_size,
        **_samples_per_s(history),
        "warm_up_steps": warm_up_steps(history),
        **_step_time_s(sorted(step.time_s for step in every_step)),
        **_phase_s(every_step),
        **{f"parts_s.{part}": part_s for part, part_s in parts.items()},
        **(expected_straggler(history) or {"straggler": None}),
        "final.loss": evaluations[0].loss if evaluations else None,
        "final.accuracy": evaluations[0].accuracy if evaluations else None,
        "peak_rss_bytes": max((r.max_rss_bytes for r in ranks if not r.is_torn), default=None),
        "restarts": max(attempt.number for attempt in history.attempts),
        "steps": _last_step(begun[-1]),
        "epochs": _last_step(begun[-1]) // history.steps_per_epoch,
        "train_loss": statistics.fmean(losses[0]),
        "lost_steps": lost_steps,
        "lost_time_s": lost_time_s,
        "waited_s": _waited_s(history),
        **_cost(history, lost_time_s),
        "attempts": [
            (attempt.life, _first_step(attempt), _last_step(attempt))
            for attempt in history.attempts
        ],
        "notes": _notes_on_steps(history.attempts[-1]),
    }


def _notes_on_steps(attempt: Attempt) -> list[str]:
    last = {rank.rank: max(rank.steps) for rank in attempt.ranks if rank.steps}
    most = max(last.values(), default=0)
    early = [
        f"rank {rank} recorded no step after step {step}, and others went on to step {most}"
        for rank, step in last.items()
        if step < most
    ]
    torn = [rank.rank for rank in attempt.ranks if rank.is_torn]
    lost = "end without an end: later ones may be lost"
    return early + [f"the events of rank {rank} {lost}" for rank in torn]


# Speed.


def _samples_per_s(history: History) -> dict[str, Any]:
    whole = whole_attempts(history)
    if not whole:
        return {"samples_per_s": None, "samples_per_step": None}
    stepped_s = [
        statistics.fmean(_time_s(steps) for steps in steps_by_rank([attempt]).values())
        for attempt in whole
    ]
    rates = _over_blocks([pair for attempt in whole for pair in _rates_of_windows(attempt)])
    return {
        "samples_per_s.mean": statistics.fmean(map(_rate, whole), stepped_s),
        "samples_per_step": sum(
            statistics.fmean(step.samples for step in steps)
            for steps in steps_by_rank(whole).values()
        ),
        "samples_per_s.sd": _weighted_sd(rates) if len(rates) > 1 else None,
        "samples_per_s.count": len(rates) if len(rates) > 1 else None,
    }


def _rate(attempt: Attempt) -> float:
    ranks = steps_by_rank([attempt]).values()
    return sum(_samples(steps) / _time_s(steps) for steps in ranks)


def _rates_of_windows(attempt: Attempt) -> list[tuple[float, float]]:
    """Samples/s, and seconds, of the windows of the lowest rank, scaled to all ranks."""
    steps = measured_steps(attempt.ranks[0])
    times = _rate(attempt) * _time_s(steps) / (_samples(steps) or math.inf)
    return [
        (times * _samples(window.values()) / time_s(window), time_s(window))
        for window in measured_windows(attempt.ranks[0])
    ]


def _over_blocks(rates: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of more than 20 windows, 20 blocks: the n-th window is in block n * 20 // windows, rounded so
    that each block ends where its share of the windows does."""
    if len(rates) <= _MOST_BLOCKS:
        return list(rates)
    ends = [number * len(rates) // _MOST_BLOCKS for number in range(_MOST_BLOCKS + 1)]
    blocks = []
    for begin, end in itertools.pairwise(ends):
        values, lengths_s = zip(*rates[begin:end], strict=True)
        blocks.append((statistics.fmean(values, lengths_s), math.fsum(lengths_s)))
    return blocks


def _weighted_sd(rates: Sequence[tuple[float, float]]) -> float:
    """That of a sample in which each value stands as often as its window is long."""
    values, lengths_s = zip(*rates, strict=True)
    mean = statistics.fmean(values, lengths_s)
    mean_of_squares = statistics.fmean([(value - mean) ** 2 for value in values], lengths_s)
    return math.sqrt(mean_of_squares / (1 - 1 / len(rates)))


def _step_time_s(times_s: Sequence[float]) -> dict[str, Any]:
    """A percentile is the smallest value that so many of a hundred do not exceed."""
    p50, p95 = (times_s[math.ceil(percent * len(times_s) / 100) - 1] for percent in (50, 95))
    return {
        "step_time_s.mean": statistics.mean(times_s),
        "step_time_s.sd": statistics.stdev(times_s),
        "step_time_s.p50": p50,
        "step_time_s.p95": p95,
    }


def _phase_s(steps: Sequence[Step]) -> dict[str, float]:
    phases = {phase for step in steps for phase in step.phases_s}
    return {
        **{
            f"phase_s.{phase}": statistics.mean(step.phases_s.get(phase, 0.0) for step in steps)
            for phase in phases
        },
        "phase_s.other": statistics.mean(step.unnamed_s for step in steps),
    }


# Progress, and what was lost.


def _first_step(attempt: Attempt) -> int | None:
    """None: it began neither a step nor from a checkpoint."""
    has_begun = attempt.first_step or any(rank.steps for rank in attempt.ranks)
    return attempt.first_step if has_begun else None


def _last_step(attempt: Attempt) -> int:
    """A rank that ends before its first step says how far the checkpoint is."""
    return max(
        (max(rank.steps) for rank in attempt.ranks if rank.steps), default=attempt.first_step
    )


def _known_end_s(rank: RankHistory) -> float:
    return rank.reached_s(paused=True) + rank.hangs_s


def _worked_until_s(rank: RankHistory) -> float:
    """Steps of which only the number is known take the mean time of those that count."""
    if not rank.is_killed:
        return rank.reached_s(paused=True)
    step_s = statistics.mean(step.time_s for step in measured_steps(rank))
    return rank.reached_s(min(rank.windows[-1]) - 1) + len(rank.windows[-1]) * step_s


def _cost(history: History, lost_time_s: float | None) -> dict[str, Any]:
    """The clock of the first node never stands still, so that all times are true ones."""
    held_s = 0.0
    for life in {attempt.life for attempt in history.attempts}:
        own = [attempt for attempt in history.attempts if attempt.life == life]
        held_s += _known_end_s(own[-1].ranks[0]) - own[0].begins_s
    return {
        "cost.held_s": held_s,
        "cost.gpu_hours": held_s / 3600 * history.world_size,
        "cost.cpu_hours": None,
        "cost.lost_share": None if lost_time_s is None else lost_time_s / held_s,
    }


def _waited_s(history: History) -> float | None:
    gaps = [
        after.begins_s - _known_end_s(before.ranks[0])
        for before, after in itertools.pairwise(history.attempts)
        if before.life != after.life
    ]
    return sum(gaps) if gaps else None


def _lost_time_s(history: History, again_s: float) -> float | None:
    """`again_s` took the steps that were done again."""
    if len(history.attempts) < 2:
        return None
    lost_s = again_s
    for before, after in itertools.pairwise(history.attempts):
        first = after.ranks[0]
        noticed_s = ended_s = _known_end_s(before.ranks[0])
        if before.ranks[0].steps:
            of_node = [rank for rank in before.ranks if rank.node == before.ranks[0].node]
            ended_s = max(_worked_until_s(rank) for rank in of_node if written_windows(rank))
        until_s = first.begins_s if first.steps else _known_end_s(first)
        if before.life == after.life:
            lost_s += until_s - ended_s
        else:  # what came between the lives was not held
            lost_s += max(0.0, noticed_s - ended_s) + until_s - after.begins_s
    return lost_s


# What ranks say.


def best_accuracy(history: History) -> float | None:
    """Of the lowest rank, in all that was not done again."""
    return max((one.accuracy for _, one in _evaluations(history)), default=None)


def expected_time_to_accuracy(history: History, target: float) -> dict[str, Any]:
    """In true time, from the first step of all."""
    reached = [
        (ends_s, evaluation.after_step)
        for ends_s, evaluation in _evaluations(history)
        if evaluation.accuracy >= target
    ]
    return {
        "time_to_accuracy.target": target,
        "time_to_accuracy.best": best_accuracy(history),
        "time_to_accuracy.epoch": None,
        **_reached(history, reached),
    }


def expected_time_to_train_loss(history: History, target: float) -> dict[str, Any]:
    """In true time, by the steps of whole windows that hold the last tenth of all steps so far."""
    windows = _that_count(
        history,
        lambda rank: [
            (max(window), rank.reached_s(max(window)), [step.loss for step in window.values()])
            for window in written_windows(rank)
        ],
    )
    means = []
    for place, (step, _, _) in enumerate(windows):
        losses: list[float] = []
        for _, _, own in reversed(windows[: place + 1]):
            losses += own
            if len(losses) >= step / 10:
                break
        means.append(statistics.fmean(losses))
    reached = [
        (ends_s, step)
        for (step, ends_s, _), mean in zip(windows, means, strict=True)
        if mean <= target
    ]
    return {
        "time_to_accuracy.goal": "train_loss",
        "time_to_accuracy.best": min(means),
        **_reached(history, reached),
    }


def _reached(history: History, reached: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """`reached`: true times and steps."""
    begins_s = next(one.ranks[0].begins_s for one in history.attempts if one.ranks[0].steps)
    return {
        "time_to_accuracy.is_reached": bool(reached),
        "time_to_accuracy.time_s": reached[0][0] - begins_s if reached else None,
        "time_to_accuracy.step": reached[0][1] if reached else None,
    }


def _evaluations(history: History) -> list[tuple[float, Pause]]:
    """With the true times of their ends."""
    found = _that_count(
        history,
        lambda rank: [
            (one.after_step, rank.reached_s(one.after_step, paused=True), one)
            for one in rank.evaluations
        ],
    )
    return [(ends_s, one) for _, ends_s, one in found]


def _that_count(history: History, of: Callable[[RankHistory], list[tuple]]) -> list[tuple]:
    """What the first rank did, by step, without what was done again after a restart."""
    found: list[tuple] = []
    for attempt in history.attempts:
        if attempt.ranks[0].steps:
            found = [one for one in found if one[0] <= attempt.first_step]
        found += of(attempt.ranks[0])
    return found


def _samples(steps: Iterable[Step]) -> int:
    return sum(step.samples for step in steps)


def _time_s(steps: Iterable[Step]) -> float:
    return math.fsum(step.time_s for step in steps)
