"""Where the time of a history went and who held the others up, by docs/figures.md, step by step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from measured_steps import Numbered, measured_steps, measured_windows, whole_attempts
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
_MOST_STRETCHES = 20
_LEAST_LONGER = 0.05
_CHANCE = 0.01


def expected_parts(
    history: History, *, lost_time_s: float | None, num_steps: int
) -> dict[str, float]:
    """`num_steps` were done, those that were done again counted once."""
    by_rank = _steps_by_rank(history)
    parts = _without_others(by_rank)
    turns_s = _taking_turns_s(_stretches(history))
    parts = _moved(parts, "communication", "stragglers", turns_s - parts["stragglers"])
    saved_s = max(_mean(steps, _saved_s) for steps in by_rank.values())
    parts = _moved(parts, "communication", "checkpoints", saved_s - parts["checkpoints"])
    pauses_s, waited_s = _pauses_s(history, by_rank, num_steps)
    parts = _moved(parts, "communication", "checkpoints", waited_s)
    parts["checkpoints"] += pauses_s - waited_s
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


def _without_others(by_rank: Mapping[int, Sequence[Step]]) -> dict[str, float]:
    """Of the steps alone: as the typical rank does them, as far as it waits for the slowest."""
    every = [step for steps in by_rank.values() for step in steps]
    means = {part: _mean(every, lambda step, part=part: _recorded(step)[part]) for part in PARTS}
    if len(by_rank) < 2:
        return means
    in_order = sorted(by_rank.values(), key=lambda steps: _mean(steps, _own_s))
    typical, slowest = statistics.median_low(range(len(in_order))), len(in_order) - 1
    own_s = [_mean(steps, _own_s) for steps in in_order]
    exposed_s = [_mean(steps, _exposed_s) for steps in in_order]
    longer_s = own_s[slowest] - own_s[typical]
    held_s = min(longer_s, max(0.0, exposed_s[typical] - exposed_s[slowest]))
    share = held_s / longer_s if longer_s else 0.0
    waits_s = own_s[slowest] - _mean(every, _own_s)
    share = min(share, means["communication"] / waits_s) if waits_s > 0 else 0.0
    parts = dict(means)
    for part in ("data", "device", "computing", "fixed", "undivided"):
        own = _mean(in_order[typical], lambda step, part=part: _recorded(step)[part])
        parts[part] = (1 - share) * means[part] + share * own
    parts["stragglers"] = share * longer_s
    parts["communication"] = 0.0
    parts["communication"] = _mean(every, lambda step: step.time_s) - sum(parts.values())
    return parts


def _recorded(step: Step) -> dict[str, float]:
    """Of one step, whoever it waits for."""
    of = step.phases_s.get
    rest = "fixed" if of("forward_backward") else "undivided"
    parts = dict.fromkeys(PARTS, 0.0)
    parts["data"] = of("data_wait", 0.0)
    parts["device"] = of("host_to_device", 0.0)
    parts["computing"] = of("forward_backward", 0.0)
    parts["communication"] = _exposed_s(step)
    parts["checkpoints"] = _saved_s(step)
    parts["fixed"] = of("optimizer", 0.0)
    parts[rest] += step.unnamed_s
    return parts


def _pauses_s(
    history: History, by_rank: Mapping[int, Sequence[Step]], num_steps: int
) -> tuple[float, float]:
    """Per step, what the rank that saves did so between steps, and what of it the others' steps
    have in them, as they wait for it."""
    saves_s = dict.fromkeys(by_rank, 0.0)
    for attempt in history.attempts:
        for rank in attempt.ranks:
            if rank.rank in saves_s:
                saves_s[rank.rank] += sum(save.pause_s for save in rank.saves)
    saver = max(saves_s, key=saves_s.__getitem__)
    save_s = saves_s[saver] / num_steps
    steps_s = {number: _mean(steps, lambda step: step.time_s) for number, steps in by_rank.items()}
    waited = [
        min(save_s, max(0.0, steps_s[number] - steps_s[saver]))
        for number, steps in by_rank.items()
        for _ in steps
    ]
    return save_s, statistics.fmean(waited)


def _moved(parts: dict[str, float], source: str, target: str, time_s: float) -> dict[str, float]:
    time_s = min(max(0.0, time_s), parts[source])
    return parts | {source: parts[source] - time_s, target: parts[target] + time_s}


def _steps_by_rank(history: History) -> dict[int, list[Step]]:
    found: dict[int, list[Step]] = {}
    for attempt in history.attempts:
        for rank in attempt.ranks:
            if steps := measured_steps(attempt, rank):
                found.setdefault(rank.rank, []).extend(steps)
    return dict(sorted(found.items()))


def _mean(steps: Sequence[Step], time_s: Callable[[Step], float]) -> float:
    return statistics.fmean(map(time_s, steps))


def _exposed_s(step: Step) -> float:
    return step.phases_s.get("exposed_communication", 0.0)


def _saved_s(step: Step) -> float:
    return step.phases_s.get("checkpoint", 0.0)


def _own_s(step: Step) -> float:
    return step.time_s - _exposed_s(step) - _saved_s(step)


# Stretches.


class _Stretch(NamedTuple):
    """By rank, seconds per step."""

    num_steps: float
    own_s: dict[int, float]
    waited_s: dict[int, float]


def expected_straggler(history: History) -> dict[str, Any] | None:
    stretches = _stretches(history)
    if not stretches:
        return None
    steps = [
        step
        for attempt in whole_attempts(history)
        for rank in attempt.ranks
        for step in measured_steps(attempt, rank)
    ]
    least_s = _LEAST_LONGER * _mean(steps, lambda step: step.time_s)
    return _slow_node(history, stretches, least_s) or _slow_rank(history, stretches, least_s)


def _slow_rank(
    history: History, stretches: Sequence[_Stretch], least_s: float
) -> dict[str, Any] | None:
    wins = [max(stretch.own_s, key=stretch.own_s.__getitem__) for stretch in stretches]
    rank = statistics.mode(wins)
    longer_s = statistics.fmean(
        stretch.own_s[rank] - statistics.median_low(stretch.own_s.values()) for stretch in stretches
    )
    if longer_s < least_s or not _is_certain(wins.count(rank), len(wins), history.world_size):
        return None
    node = rank // history.ranks_per_node
    return _straggler(rank, node, longer_s, wins.count(rank), len(wins))


def _slow_node(
    history: History, stretches: Sequence[_Stretch], least_s: float
) -> dict[str, Any] | None:
    """All ranks of it are slower than all others."""
    size = history.ranks_per_node
    if history.nodes < 2 or size < 2:
        return None
    slowest = [sorted(one.own_s, key=one.own_s.__getitem__)[-size:] for one in stretches]
    wins = [{rank // size for rank in ranks} for ranks in slowest]
    counts = {node: wins.count({node}) for node in range(history.nodes)}
    node = max(counts, key=counts.__getitem__)
    if not _is_certain(counts[node], len(wins), history.nodes):
        return None
    longer_s = statistics.fmean(
        statistics.fmean(time_s for rank, time_s in one.own_s.items() if rank // size == node)
        - statistics.median_low(
            time_s for rank, time_s in one.own_s.items() if rank // size != node
        )
        for one in stretches
    )
    if longer_s < least_s:
        return None
    return _straggler(None, node, longer_s, counts[node], len(wins))


def _straggler(
    rank: int | None, node: int, longer_s: float, num_slowest: int, num_stretches: int
) -> dict[str, Any]:
    return {
        "straggler.rank": rank,
        "straggler.node": node,
        "straggler.host": f"host{node}",
        "straggler.longer_s": longer_s,
        "straggler.slowest_in": num_slowest,
        "straggler.stretches": num_stretches,
    }


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
    if history.world_size < 2:
        return []
    found = []
    for attempt in whole_attempts(history):
        windows = {rank.rank: measured_windows(attempt, rank) for rank in attempt.ranks}
        found += _cut(windows)
    return found


def _cut(windows: Mapping[int, Sequence[Numbered]]) -> list[_Stretch]:
    """A step of a rank is an even share of its window, also where a stretch ends within one."""
    first = max(min(own[0].steps) for own in windows.values())
    last = min(max(own[-1].steps) for own in windows.values())
    number = min(_MOST_STRETCHES, last - first + 1, *(len(own) for own in windows.values()))
    if number < 1:
        return []
    shares = {rank: _shares(own) for rank, own in windows.items()}
    length = (last - first + 1) / number
    found = []
    for index in range(number):
        begin = first - 1 + index * length
        pieces = _pieces(begin, begin + length)
        if all(step in own for own in shares.values() for step in pieces):
            own_s, waited_s = (
                {
                    rank: sum(part * own[step][which] for step, part in pieces.items()) / length
                    for rank, own in shares.items()
                }
                for which in (0, 1)
            )
            found.append(_Stretch(length, own_s, waited_s))
    return found


def _pieces(begin: float, end: float) -> dict[int, float]:
    """Which steps lie between two points, and how much of each; step n lies between n - 1 and n."""
    overlaps = {
        step: min(step, end) - max(step - 1, begin)
        for step in range(math.floor(begin) + 1, math.ceil(end) + 1)
    }
    return {step: part for step, part in overlaps.items() if part > 1e-6}


def _shares(windows: Sequence[Numbered]) -> dict[int, tuple[float, float]]:
    """By step, its own and its waiting time, both the mean of the window."""
    found = {}
    for window in windows:
        steps = list(window.steps.values())
        means = _mean(steps, _own_s), _mean(steps, _exposed_s)
        found |= dict.fromkeys(window.steps, means)
    return found
