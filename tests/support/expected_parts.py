"""Where the time of a history went and who held the others up, by docs/figures.md, step by step."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from measured_steps import Window, measured_windows, steps_by_rank, whole_attempts
from step_histories import History, Step

PARTS = (
    "data",
    "device",
    "communication",
    "stragglers",
    "computing",
    "fixed",
    "checkpoints",
    "restarts",
    "undivided",
)
_OF_PHASES = {
    "data_wait": "data",
    "host_to_device": "device",
    "exposed_communication": "communication",
    "forward_backward": "computing",
    "optimizer": "fixed",
    "checkpoint": "checkpoints",
}
_MOST_STRETCHES = 20
_LEAST_LONGER = 0.05
_CHANCE = 0.01


def expected_parts(
    history: History, *, lost_time_s: float | None, num_steps: int
) -> dict[str, float]:
    """`num_steps` were done, those that were done again counted once."""
    by_rank = steps_by_rank(history.attempts)
    means = {rank: _means(steps) for rank, steps in by_rank.items()}
    parts = _without_others(means, _means([step for own in by_rank.values() for step in own]))
    turns_s = _taking_turns_s(_stretches(history))
    parts = _moved(parts, "communication", "stragglers", turns_s - parts["stragglers"])
    saved_s = max(own["checkpoints"] for own in means.values())
    parts = _moved(parts, "communication", "checkpoints", saved_s - parts["checkpoints"])
    # What the rank that saves did so between steps, and what of it the others' steps have in them.
    saves_s = {rank: _saves_s(history, rank) / num_steps for rank in means}
    saver = max(saves_s, key=saves_s.__getitem__)
    longer_s = [sum(own.values()) - sum(means[saver].values()) for own in means.values()]
    waited_s = [min(saves_s[saver], max(0.0, time_s)) for time_s in longer_s]
    wait_s = statistics.fmean(waited_s, [len(steps) for steps in by_rank.values()])
    parts = _moved(parts, "communication", "checkpoints", wait_s)
    parts["checkpoints"] += saves_s[saver] - wait_s
    parts["restarts"] = (lost_time_s or 0.0) / num_steps
    return parts


def expected_losses(
    overall_rate: float | None, parts: Mapping[str, float], against: Against | None
) -> dict[str, float]:
    """Shares of the time by part, and `efficiency`; with nothing to be held against, of all that is
    no computing. `overall_rate`: samples/s over all the time that counts."""
    whole_s = sum(parts.values())
    shares = {part: parts[part] / whole_s for part in PARTS}
    if against is None or overall_rate is None:
        lost = shares | {"computing": 0.0, "undivided": 0.0}
        return lost | {"efficiency": 1 - sum(lost.values())}
    efficiency = overall_rate / against.overall_rate / against.times_gpus
    lost = {part: shares[part] - efficiency * against.shares[part] for part in PARTS}
    return lost | {"efficiency": efficiency}


class Against(NamedTuple):
    """The smallest size."""

    overall_rate: float
    times_gpus: float
    """As many times its GPUs has the one that is held against it."""
    shares: Mapping[str, float]


# Parts.


def _means(steps: Sequence[Step]) -> dict[str, float]:
    """Seconds of a step by part, whoever it waits for."""
    means = dict.fromkeys(PARTS, 0.0)
    for step in steps:
        rest = "fixed" if "forward_backward" in step.phases_s else "undivided"
        means[rest] += step.unnamed_s / len(steps)
        for phase, time_s in step.phases_s.items():
            means[_OF_PHASES[phase]] += time_s / len(steps)
    return means


def _own_s(means: Mapping[str, float]) -> float:
    return sum(means.values()) - means["communication"] - means["checkpoints"]


def _without_others(
    by_rank: Mapping[int, dict[str, float]], every: dict[str, float]
) -> dict[str, float]:
    """Of the steps alone: as the typical rank does them, as far as it waits for the slowest."""
    if len(by_rank) < 2:
        return every
    in_order = sorted(by_rank.values(), key=_own_s)
    typical, slowest = in_order[(len(in_order) - 1) // 2], in_order[-1]
    longer_s = _own_s(slowest) - _own_s(typical)
    held_s = min(longer_s, max(0.0, typical["communication"] - slowest["communication"]))
    share = held_s / longer_s if longer_s else 0.0
    waits_s = _own_s(slowest) - _own_s(every)
    share = min(share, every["communication"] / waits_s) if waits_s > 0 else 0.0
    own = ("data", "device", "computing", "fixed", "undivided")
    parts = every | {part: (1 - share) * every[part] + share * typical[part] for part in own}
    parts["stragglers"] = share * longer_s
    parts["communication"] += sum(every.values()) - sum(parts.values())
    return parts


def _saves_s(history: History, number: int) -> float:
    ranks = [rank for attempt in history.attempts for rank in attempt.ranks if rank.rank == number]
    return sum(save.time_s for rank in ranks for save in rank.saves)


def _moved(parts: dict[str, float], source: str, target: str, time_s: float) -> dict[str, float]:
    time_s = min(max(0.0, time_s), parts[source])
    return parts | {source: parts[source] - time_s, target: parts[target] + time_s}


# Stretches.


class _Stretch(NamedTuple):
    """By rank, seconds per step."""

    num_steps: float
    own_s: dict[int, float]
    waited_s: dict[int, float]


def expected_straggler(history: History) -> dict[str, Any] | None:
    """A node, all ranks of which are slower than all others, or a rank."""
    stretches = _stretches(history)
    if not stretches:
        return None
    steps = [step for own in steps_by_rank(whole_attempts(history)).values() for step in own]
    least_s = _LEAST_LONGER * statistics.fmean(step.time_s for step in steps)
    sizes = [history.ranks_per_node] if history.nodes > 1 and history.ranks_per_node > 1 else []
    for size in (*sizes, 1):
        slowest = [sorted(one.own_s, key=one.own_s.__getitem__)[-size:] for one in stretches]
        places = [{rank // size for rank in ranks} for ranks in slowest]
        wins = [place for (place, *others) in places if not others]
        place = statistics.mode(wins or [0])
        longer_s = statistics.fmean(_longer_s(one.own_s, place, size) for one in stretches)
        is_certain = _is_certain(wins.count(place), len(stretches), history.world_size // size)
        if longer_s >= least_s and is_certain:
            node = place * size // history.ranks_per_node
            return {
                "straggler.rank": place if size == 1 else None,
                "straggler.node": node,
                "straggler.host": f"host{node}",
                "straggler.longer_s": longer_s,
                "straggler.slowest_in": wins.count(place),
                "straggler.stretches": len(stretches),
            }
    return None


def _longer_s(own_s: Mapping[int, float], place: int, size: int) -> float:
    """Than the typical one: of all ranks, or of those on other nodes."""
    inside = [time_s for rank, time_s in own_s.items() if rank // size == place]
    others = [time_s for rank, time_s in own_s.items() if size == 1 or rank // size != place]
    return statistics.fmean(inside) - statistics.median_low(others)


def _is_certain(wins: int, num: int, rivals: int) -> bool:
    """Chance makes any of the rivals so often the slowest in less than 1 of 100 runs; and it is so
    mostly."""
    others = rivals - 1
    ways = sum(math.comb(num, lost) * others**lost for lost in range(num - wins + 1))
    return rivals * ways / rivals**num < _CHANCE and wins > num / 2


def _taking_turns_s(stretches: Sequence[_Stretch]) -> float:
    """Per step, by how much the slowest rank of each stretch held its typical one up."""
    held_s = 0.0
    for stretch in stretches:
        in_order = sorted(stretch.own_s, key=stretch.own_s.__getitem__)
        typical, slowest = in_order[(len(in_order) - 1) // 2], in_order[-1]
        longer_s = stretch.own_s[slowest] - stretch.own_s[typical]
        waited_s = stretch.waited_s[typical] - stretch.waited_s[slowest]
        held_s += stretch.num_steps * min(longer_s, max(0.0, waited_s))
    return held_s / sum(stretch.num_steps for stretch in stretches) if stretches else 0.0


def _stretches(history: History) -> list[_Stretch]:
    found = []
    for attempt in whole_attempts(history) if history.world_size > 1 else ():
        found += _cut({rank.rank: measured_windows(rank) for rank in attempt.ranks})
    return found


def _cut(windows: Mapping[int, Sequence[Window]]) -> list[_Stretch]:
    """A step of a rank is an even share of its window, also where a stretch ends within one."""
    first = max(min(own[0]) for own in windows.values())
    last = min(max(own[-1]) for own in windows.values())
    number = min(_MOST_STRETCHES, last - first + 1, *map(len, windows.values()))
    if number < 1:
        return []
    steps = np.arange(first, last + 1)  # step n lies between n - 1 and n
    shares = {rank: _shares(own, steps) for rank, own in windows.items()}
    found = []
    for begin, end in itertools.pairwise(np.linspace(first - 1, last, number + 1)):
        parts = np.minimum(steps, end) - np.maximum(steps - 1, begin)
        inside = parts > 1e-6
        times = {rank: parts[inside] @ own[inside] / (end - begin) for rank, own in shares.items()}
        if not np.isnan(list(times.values())).any():
            own_s, waited_s = ({rank: one[i] for rank, one in times.items()} for i in (0, 1))
            found.append(_Stretch(end - begin, own_s, waited_s))
    return found


def _shares(windows: Sequence[Window], steps: Sequence[int]) -> np.ndarray:
    """By step, its own and its waiting time, both the mean of the window; NaN in lost windows."""
    found = {}
    for window in windows:
        means = _means(list(window.values()))
        found |= dict.fromkeys(window, (_own_s(means), means["communication"]))
    return np.array([found.get(step, (math.nan, math.nan)) for step in steps])
