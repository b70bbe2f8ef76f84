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
    warm_up_steps,
    whole_attempts,
    written_windows,
)
from step_histories import Attempt, Evaluation, History, RankHistory, Step, end_s

_MOST_BLOCKS = 20


def expected_figures(history: History) -> dict[str, Any]:
    """By the keys of the summary, keys within keys joined by dots; percentiles are exact here."""
    every_step = [
        step
        for attempt in history.attempts
        for rank in attempt.ranks
        for step in measured_steps(attempt, rank)
    ]
    newest = _newest_that_began(history)
    lost_time_s = _lost_time_s(history, every_step)
    num_steps = _work(history) - lost_steps(history)
    parts = expected_parts(history, lost_time_s=lost_time_s, num_steps=num_steps)
    return {
        "nodes": history.nodes,
        "gpus_per_node": history.ranks_per_node,
        "world_size": history.world_size,
        **_samples_per_s(history),
        "warm_up_steps": warm_up_steps(history),
        **_step_time_s(every_step),
        **_phase_s(every_step),
        **{f"parts_s.{part}": time_s for part, time_s in parts.items()},
        **(expected_straggler(history) or {"straggler": None}),
        **_final(history),
        "peak_rss_bytes": _peak_rss_bytes(history),
        "restarts": max(attempt.number for attempt in history.attempts),
        "steps": _last_step_known(newest),
        "epochs": _epochs(history, newest),
        "train_loss": _train_loss(history),
        "lost_steps": lost_steps(history),
        "lost_time_s": lost_time_s,
        "waited_s": _waited_s(history),
        **_cost(history, every_step),
        "attempts": [
            (attempt.life, _first_step(attempt), _last_step_known(attempt))
            for attempt in history.attempts
        ],
        "notes": _notes_on_steps(history.attempts[-1]),
    }


def _notes_on_steps(attempt: Attempt) -> list[str]:
    """A torn file has neither its last window nor its end."""
    last = {
        rank.rank: attempt.first_step
        + len(rank.steps)
        - (rank.windows[-1] if rank.tears_last_window else 0)
        for rank in attempt.ranks
        if rank.steps
    }
    most = max(last.values(), default=0)
    early = [
        f"rank {rank} recorded no step after step {step}, and others went on to step {most}"
        for rank, step in last.items()
        if step < most
    ]
    torn = [rank.rank for rank in attempt.ranks if rank.tears_last_window]
    lost = "end without an end: later ones may be lost"
    return early + [f"the events of rank {rank} {lost}" for rank in torn]


# Speed.


def _samples_per_s(history: History) -> dict[str, Any]:
    whole = whole_attempts(history)
    if not whole:
        return {"samples_per_s": None, "samples_per_step": None}
    mean = sum(_stepped_s(attempt) * _rate(attempt) for attempt in whole) / sum(
        map(_stepped_s, whole)
    )
    rates = _over_blocks([pair for attempt in whole for pair in _rates_of_windows(attempt)])
    return {
        "samples_per_s.mean": mean,
        "samples_per_step": _samples_per_step(history, whole),
        "samples_per_s.sd": _weighted_sd(rates) if len(rates) > 1 else None,
        "samples_per_s.count": len(rates) if len(rates) > 1 else None,
    }


def _rate(attempt: Attempt) -> float:
    ranks = [measured_steps(attempt, rank) for rank in attempt.ranks]
    return sum(_samples(steps) / _time_s(steps) for steps in ranks)


def _samples_per_step(history: History, whole: Sequence[Attempt]) -> float:
    """That of each rank, added up."""
    by_rank: dict[int, list[Step]] = {number: [] for number in range(history.world_size)}
    for attempt in whole:
        for rank in attempt.ranks:
            by_rank[rank.rank] += measured_steps(attempt, rank)
    return sum(statistics.fmean(step.samples for step in steps) for steps in by_rank.values())


def _stepped_s(attempt: Attempt) -> float:
    return statistics.fmean(_time_s(measured_steps(attempt, rank)) for rank in attempt.ranks)


def _rates_of_windows(attempt: Attempt) -> list[tuple[float, float]]:
    """Samples/s, and seconds, of the windows of the lowest rank, scaled to all ranks."""
    lowest = min(attempt.ranks, key=lambda rank: rank.rank)
    steps = measured_steps(attempt, lowest)
    if not _samples(steps):
        return [(0.0, window.time_s) for window in measured_windows(attempt, lowest)]
    times = _rate(attempt) * _time_s(steps) / _samples(steps)
    return [
        (times * _samples(window.steps.values()) / window.time_s, window.time_s)
        for window in measured_windows(attempt, lowest)
    ]


def _over_blocks(rates: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of more than 20 windows, 20 blocks: the n-th window is in block n * 20 // windows, rounded so
    that each block ends where its share of the windows does."""
    if len(rates) <= _MOST_BLOCKS:
        return list(rates)
    ends = [number * len(rates) // _MOST_BLOCKS for number in range(_MOST_BLOCKS + 1)]
    blocks = []
    for begin, end in itertools.pairwise(ends):
        own_s = math.fsum(time_s for _, time_s in rates[begin:end])
        samples = math.fsum(rate * time_s for rate, time_s in rates[begin:end])
        blocks.append((samples / own_s, own_s))
    return blocks


def _weighted_sd(rates: Sequence[tuple[float, float]]) -> float:
    """That of a sample in which each value stands as often as its window is long."""
    total_s = math.fsum(time_s for _, time_s in rates)
    mean = math.fsum(rate * time_s for rate, time_s in rates) / total_s
    mean_of_squares = math.fsum((rate - mean) ** 2 * (time_s / total_s) for rate, time_s in rates)
    return math.sqrt(mean_of_squares / (1 - 1 / len(rates)))


def _step_time_s(steps: Sequence[Step]) -> dict[str, Any]:
    times_s = sorted(step.time_s for step in steps)
    return {
        "step_time_s.mean": statistics.mean(times_s),
        "step_time_s.sd": statistics.stdev(times_s),
        "step_time_s.p50": _percentile(times_s, 50),
        "step_time_s.p95": _percentile(times_s, 95),
    }


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that so many of a hundred do not exceed."""
    return next(
        value for index, value in enumerate(ordered, 1) if index * 100 >= percent * len(ordered)
    )


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


def lost_steps(history: History) -> int:
    """All the work there was, less what there is of it by the last attempt that got so far."""
    begun = _begun(history)
    return _work(history) - (_last_step_known(begun[-1]) - begun[0].first_step)


def _work(history: History) -> int:
    """Steps, however often they were done."""
    return sum(_last_step_known(attempt) - attempt.first_step for attempt in _begun(history))


def _begun(history: History) -> list[Attempt]:
    return [attempt for attempt in history.attempts if _first_step(attempt) is not None]


def _newest_that_began(history: History) -> Attempt:
    """Its first step, or going on from a checkpoint."""
    return _begun(history)[-1]


def _first_step(attempt: Attempt) -> int | None:
    has_begun = attempt.first_step or any(rank.steps for rank in attempt.ranks)
    return attempt.first_step if has_begun else None


def _last_step(attempt: Attempt) -> int | None:
    """Of the steps that are known of: of a torn file, those of the windows before."""
    known = []
    for rank in attempt.ranks:
        if rank.tears_last_window:
            known += [max(window.steps) for window in written_windows(attempt, rank)[-1:]]
        elif rank.steps:
            known.append(attempt.first_step + len(rank.steps))
    return max(known, default=None)


def _last_step_known(attempt: Attempt) -> int:
    """A rank that ends before its first step says how far the checkpoint is."""
    last = _last_step(attempt)
    return attempt.first_step if last is None else last


def _epochs(history: History, attempt: Attempt) -> int:
    """A torn file lacks only what came with its last step."""
    finished = [
        (attempt.first_step + len(rank.steps) - rank.tears_last_window) // history.steps_per_epoch
        for rank in attempt.ranks
    ]
    return max(finished)


def _known_end_s(attempt: Attempt, rank: RankHistory) -> float:
    if not rank.tears_last_window:
        return end_s(rank) + rank.hangs_s
    return _written_until_s(rank)


def _worked_until_s(attempt: Attempt, rank: RankHistory) -> float:
    """Steps of which only the number is known take the mean time of those that count."""
    if not rank.is_killed:
        return _known_end_s(attempt, rank) - rank.hangs_s
    step_s = statistics.mean(step.time_s for step in measured_steps(attempt, rank))
    return _written_until_s(rank) + rank.windows[-1] * step_s


def _written_until_s(rank: RankHistory) -> float:
    known = rank.begins_s
    known += sum(step.time_s for step in rank.steps[: -rank.windows[-1]])
    return known + sum(
        evaluation.pause_s
        for evaluation in rank.evaluations
        if evaluation.after_steps < len(rank.steps) - rank.windows[-1]
    )


def _by_node(
    attempt: Attempt,
    time_s: Callable[[Attempt, RankHistory], float],
    choose: Callable[[Iterable[float]], float],
) -> dict[int, float]:
    known = [rank for rank in attempt.ranks if written_windows(attempt, rank)]
    return {
        node: choose(time_s(attempt, rank) for rank in known if rank.node == node)
        for node in {rank.node for rank in known}
    }


# What it cost.


def _cost(history: History, steps: Sequence[Step]) -> dict[str, Any]:
    """The clock of the first node never stands still, so that all times are true ones."""
    held_s = 0.0
    for life in {attempt.life for attempt in history.attempts}:
        own = [attempt for attempt in history.attempts if attempt.life == life]
        held_s += _known_end_s(own[-1], own[-1].ranks[0]) - own[0].begins_s
    lost_s = _lost_time_s(history, steps)
    return {
        "cost.held_s": held_s,
        "cost.gpu_hours": held_s / 3600 * history.world_size,
        "cost.cpu_hours": None,
        "cost.lost_share": None if lost_s is None else lost_s / held_s,
    }


def _waited_s(history: History) -> float | None:
    gaps = [
        after.begins_s - _known_end_s(before, before.ranks[0])
        for before, after in itertools.pairwise(history.attempts)
        if before.life != after.life
    ]
    return sum(gaps) if gaps else None


def _lost_time_s(history: History, steps: Sequence[Step]) -> float | None:
    if len(history.attempts) < 2:
        return None
    lost_s = lost_steps(history) * statistics.mean(step.time_s for step in steps)
    for before, after in itertools.pairwise(history.attempts):
        first = after.ranks[0]
        noticed_s = ended_s = _known_end_s(before, before.ranks[0])
        if before.ranks[0].steps:
            ended_s = _by_node(before, _worked_until_s, max)[before.ranks[0].node]
        until_s = first.begins_s if first.steps else _known_end_s(after, first)
        if before.life == after.life:
            lost_s += until_s - ended_s
        else:  # what came between the lives was not held
            lost_s += max(0.0, noticed_s - ended_s) + until_s - after.begins_s
    return lost_s


# What ranks say.


def best_accuracy(history: History) -> float | None:
    """Of the lowest rank, in all that was not done again."""
    return max((one.accuracy for _, _, one in _evaluations(history)), default=None)


def expected_time_to_accuracy(history: History, target: float) -> dict[str, Any]:
    """In true time, from the first step of all."""
    reached = [
        (ends_s, step)
        for ends_s, step, evaluation in _evaluations(history)
        if evaluation.accuracy >= target
    ]
    (stepped, *_) = [rank for a in history.attempts for rank in a.ranks[:1] if rank.steps]
    return {
        "time_to_accuracy.target": target,
        "time_to_accuracy.is_reached": bool(reached),
        "time_to_accuracy.best": best_accuracy(history),
        "time_to_accuracy.time_s": reached[0][0] - stepped.begins_s if reached else None,
        "time_to_accuracy.step": reached[0][1] if reached else None,
        "time_to_accuracy.epoch": None,
    }


def expected_time_to_train_loss(history: History, target: float) -> dict[str, Any]:
    """In true time, by the steps of whole windows that hold the last tenth of all steps so far."""
    windows = _windows_that_count(history)
    means = []
    for place, (_, step, _) in enumerate(windows):
        losses: list[float] = []
        for _, _, own in reversed(windows[: place + 1]):
            losses += own
            if len(losses) >= step / 10:
                break
        means.append(sum(losses) / len(losses))
    reached = [one for one, mean in zip(windows, means, strict=True) if mean <= target]
    (stepped, *_) = [rank for a in history.attempts for rank in a.ranks[:1] if rank.steps]
    return {
        "time_to_accuracy.goal": "train_loss",
        "time_to_accuracy.is_reached": bool(reached),
        "time_to_accuracy.best": min(means),
        "time_to_accuracy.time_s": reached[0][0] - stepped.begins_s if reached else None,
        "time_to_accuracy.step": reached[0][1] if reached else None,
    }


def _windows_that_count(history: History) -> list[tuple[float, int, list[float]]]:
    """True time of the end, last step, and losses of the first rank's windows, without those that a
    restart did again."""
    found: list[tuple[float, int, list[float]]] = []
    for attempt in history.attempts:
        rank = attempt.ranks[0]
        windows = written_windows(attempt, rank)
        if windows:
            found = [one for one in found if one[1] <= attempt.first_step]
        for window in windows:
            done = max(window.steps) - attempt.first_step
            pauses = [one.pause_s for one in rank.evaluations if one.after_steps < done]
            pauses += [one.pause_s for one in rank.saves if one.after_steps < done]
            ends_s = rank.begins_s + _time_s(rank.steps[:done]) + sum(pauses)
            losses = [step.loss for step in window.steps.values()]
            found.append((ends_s, attempt.first_step + done, losses))
    return found


def _evaluations(history: History) -> list[tuple[float, int, Evaluation]]:
    """True time of the end, step, and what it found, without what was lost with a restart."""
    found: list[tuple[float, int, Evaluation]] = []
    for attempt in history.attempts:
        rank = attempt.ranks[0]
        if rank.steps:
            found = [one for one in found if one[1] <= attempt.first_step]
        for evaluation in rank.evaluations:
            if not _is_after_tear(rank, evaluation.after_steps):
                steps = rank.steps[: evaluation.after_steps]
                pauses = [
                    one.pause_s
                    for one in rank.evaluations
                    if one.after_steps <= evaluation.after_steps
                ]
                ends_s = rank.begins_s + _time_s(steps) + sum(pauses)
                found.append((ends_s, attempt.first_step + evaluation.after_steps, evaluation))
    return found


# What ranks say at their ends.


def _final(history: History) -> dict[str, Any]:
    said = [
        [e for e in rank.evaluations if not _is_after_tear(rank, e.after_steps)]
        for attempt in reversed(history.attempts)
        for rank in attempt.ranks
    ]
    last = next((evaluations[-1] for evaluations in said if evaluations), None)
    return {
        "final.loss": last and last.loss,
        "final.accuracy": last and last.accuracy,
    }


def _is_after_tear(rank: RankHistory, number: int) -> bool:
    return rank.tears_last_window and number == len(rank.steps)


def _train_loss(history: History) -> float:
    """Mean of the last window, by the lowest rank of the newest attempt with one."""
    for attempt in reversed(history.attempts):
        for rank in attempt.ranks:
            for window in written_windows(attempt, rank)[-1:]:
                losses = [step.loss for step in window.steps.values()]
                return sum(losses) / len(losses)
    raise AssertionError


def _peak_rss_bytes(history: History) -> int | None:
    return max(
        (
            rank.max_rss_bytes
            for attempt in history.attempts
            for rank in attempt.ranks
            if not rank.tears_last_window
        ),
        default=None,
    )


def _samples(steps: Iterable[Step]) -> int:
    return sum(step.samples for step in steps)


def _time_s(steps: Iterable[Step]) -> float:
    return math.fsum(step.time_s for step in steps)
