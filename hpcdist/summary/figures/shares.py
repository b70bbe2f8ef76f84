"""Shares of the time of a run, per step: they add up to the whole, by their causes.

The whole is the mean step time of all ranks, and what checkpoints between steps and restarts add to
each step. Evaluations are not counted. A step of ranks that wait for each other takes as long as
its slowest rank's. So the typical rank (the lower median by its own time, without waiting) says
what a step must take, and what the slowest rank takes longer is straggling: nobody's computing, but
the wait of all others. What the slowest rank itself waits is communication.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import mul
from statistics import median_low

import msgspec

from hpcdist.base.statistics import mean
from hpcdist.summary.figures.rank import RankFigures
from hpcdist.summary.figures.stragglers import Place, Stretch, cut, find_straggler, rotating_s
from hpcdist.summary.figures.timeline import Attempt
from hpcdist.summary.figures.timing import StepTotals, merged
from hpcdist.summary.values import Straggler

DATA = "data"
DEVICE = "device"
COMPUTING = "computing"
COMMUNICATION = "communication"
STRAGGLERS = "stragglers"
FIXED = "fixed"
CHECKPOINTS = "checkpoints"
RESTARTS = "restarts"
UNDIVIDED = "undivided"

SHARES = (
    DATA,
    DEVICE,
    COMMUNICATION,
    STRAGGLERS,
    COMPUTING,
    FIXED,
    CHECKPOINTS,
    RESTARTS,
    UNDIVIDED,
)
"""Waiting for data; bringing them to the device; communication that nothing hides; waiting for a
slower rank; forward and backward; what a step takes whatever its samples (the optimizer, and what
is in no phase); saving; what restarts cost; and what is in no phase where forward and backward were
not recorded, so that nobody can say what it is."""

COMMUNICATION_PHASE = "exposed_communication"
_PHASES = {
    "data_wait": DATA,
    "host_to_device": DEVICE,
    "forward_backward": COMPUTING,
    COMMUNICATION_PHASE: COMMUNICATION,
    "checkpoint": CHECKPOINTS,
}
"""Phase -> part; others are fixed."""
_OWN = (DATA, DEVICE, COMPUTING, FIXED, UNDIVIDED)
"""Parts of a step that a rank spends on its own work."""
_NEED_PHASES = (COMMUNICATION, STRAGGLERS, COMPUTING, FIXED)


def lost_shares(
    parts_s: Mapping[str, float], baseline_s: Mapping[str, float], efficiency: float
) -> dict[str, float]:
    """Return the share of the time that each part lost; together 1 - efficiency, which is that of
    all the time."""
    if bool(parts_s[UNDIVIDED]) != bool(baseline_s[UNDIVIDED]):  # as far as the less divided one
        parts_s, baseline_s = _coarse(parts_s), _coarse(baseline_s)
    whole_s, baseline_whole_s = sum(parts_s.values()), sum(baseline_s.values())
    # So much of the baseline's time for a step is as many samples per GPU as a step here has.
    scale = efficiency * whole_s / baseline_whole_s
    return {part: (parts_s[part] - scale * baseline_s[part]) / whole_s for part in SHARES}


def shares(parts_s: Mapping[str, float]) -> dict[str, float]:
    whole_s = sum(parts_s.values())
    return {part: parts_s[part] / whole_s for part in SHARES}


def _own_parts(totals: StepTotals) -> dict[str, float]:
    """Return the seconds per step of one rank, just as it recorded them."""
    parts = dict.fromkeys(SHARES, 0.0)
    for phase, time_s in totals.phases_s.items():
        parts[_PHASES.get(phase, FIXED)] += time_s / totals.steps
    rest_s = max(0.0, totals.sum_s / totals.steps - sum(parts.values()))
    parts[FIXED if totals.phases_s.get("forward_backward") else UNDIVIDED] += rest_s
    return parts


def _own_s(parts: Mapping[str, float]) -> float:
    return sum(parts[part] for part in _OWN)


def _take_out_straggling(parts: dict[str, float], parts_of: Sequence[Mapping[str, float]]) -> None:
    """Count the time that the slowest rank takes longer than the typical one as straggling, as
    far as that one waits for it: ranks that do not wait for each other do not straggle."""
    by_own_time = sorted(parts_of, key=_own_s)
    typical, slowest = by_own_time[(len(by_own_time) - 1) // 2], by_own_time[-1]
    longer_s = _own_s(slowest) - _own_s(typical)
    if longer_s <= 0:
        return
    waited_s = typical[COMMUNICATION] - slowest[COMMUNICATION]
    share = min(1.0, max(0.0, waited_s / longer_s))
    mean_wait_s = _own_s(slowest) - _own_s(parts)
    if share * mean_wait_s > parts[COMMUNICATION]:  # not all of them waited
        share = parts[COMMUNICATION] / mean_wait_s
    for part in _OWN:
        parts[part] -= share * (parts[part] - typical[part])
    parts[STRAGGLERS] = share * longer_s
    parts[COMMUNICATION] -= share * mean_wait_s


def _move(parts: dict[str, float], source: str, target: str, time_s: float) -> None:
    """Give waiting another cause, as far as there is waiting."""
    moved_s = min(parts[source], max(0.0, time_s))
    parts[source] -= moved_s
    parts[target] += moved_s


def _coarse(parts_s: Mapping[str, float]) -> dict[str, float]:
    coarse = dict(parts_s)
    for part in _NEED_PHASES:
        coarse[UNDIVIDED] += coarse[part]
        coarse[part] = 0.0
    return coarse


def held_up_by(attempts: Sequence[Attempt], world_size: int) -> tuple[float, Straggler | None]:
    """Return the seconds per step that ranks waited for slower ones, and the one they waited for,
    from the stretches of all attempts in which every rank recorded steps."""
    stretches: list[Stretch] = []
    stepped: list[RankFigures] = []
    steps, sum_s = 0, 0.0
    for attempt in attempts:
        own = [figures for figures in attempt.ranks if figures.spans]
        if len(own) >= world_size > 1:
            stretches += cut([figures.spans for figures in own])
            stepped = own
            steps += sum(figures.totals.steps for figures in own)
            sum_s += sum(figures.totals.sum_s for figures in own)
    if not stretches:
        return 0.0, None
    places = [Place(own.rank, own.start.node, own.start.host) for own in stepped]
    straggler = find_straggler(stretches, places, sum_s / steps)
    if straggler is not None:
        straggler = msgspec.structs.replace(straggler, phase=_slow_phase(straggler, stepped))
    return rotating_s(stretches), straggler


def _slow_phase(straggler: Straggler, ranks: Sequence[RankFigures]) -> str | None:
    """Return the phase in which a straggler takes most longer than the typical rank."""
    slow = {straggler.node if straggler.rank is None else straggler.rank, *straggler.others}
    times: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for own in ranks:
        is_slow = (own.start.node if straggler.rank is None else own.rank) in slow
        for phase in own.totals.phases_s.keys() - {COMMUNICATION_PHASE}:
            times[phase][is_slow].append(own.totals.phases_s[phase] / own.totals.steps)
    longer_s = {
        phase: mean(slow_s) - (median_low(others_s) if others_s else 0.0)
        for phase, (others_s, slow_s) in times.items()
        if slow_s
    }
    return max(sorted(longer_s), key=lambda phase: longer_s[phase], default=None)


def parts_of_run(
    attempts: Sequence[Attempt],
    *,
    rotating_s: float,
    num_steps: int,
    lost_s: float,
    are_apart: bool = False,
) -> dict[str, float]:
    """Return the mean seconds per step by share; some rank recorded steps.

    `rotating_s`: what ranks that take turns in being slow cost per step, the rank that is the
    slowest over all included. `num_steps` were done, those that restarts did again counting once,
    which cost `lost_s`. Ranks that train apart wait for nobody: what they call so is a fixed cost.
    """
    by_rank: dict[int, list[StepTotals]] = defaultdict(list)
    saves_of: dict[int, float] = defaultdict(float)
    for attempt in attempts:
        for figures in attempt.ranks:
            by_rank[figures.rank].append(figures.totals)
            saves_of[figures.rank] += figures.saves_s
    ranks = {rank: totals for rank in sorted(by_rank) if (totals := merged(by_rank[rank])).steps}
    steps = [totals.steps for totals in ranks.values()]
    parts_of = [_own_parts(totals) for totals in ranks.values()]
    parts = {
        part: sum(own[part] * num for own, num in zip(parts_of, steps, strict=True)) / sum(steps)
        for part in SHARES
    }
    if len(ranks) > 1:
        _take_out_straggling(parts, parts_of)
        _move(parts, COMMUNICATION, STRAGGLERS, rotating_s - parts[STRAGGLERS])
        longest_save_s = max(own[CHECKPOINTS] for own in parts_of)
        _move(parts, COMMUNICATION, CHECKPOINTS, longest_save_s - parts[CHECKPOINTS])
    saver = max(ranks, key=lambda rank: saves_of[rank])
    if saves_s := saves_of[saver] / max(1, num_steps):
        # Ranks that save nothing go on, and wait for the saver in their next step: that is in their
        # step time already.
        step_s = {rank: totals.sum_s / totals.steps for rank, totals in ranks.items()}
        longer_s = [min(saves_s, max(0.0, own_s - step_s[saver])) for own_s in step_s.values()]
        in_steps_s = sum(map(mul, longer_s, steps)) / sum(steps)
        _move(parts, COMMUNICATION, CHECKPOINTS, in_steps_s)
        parts[CHECKPOINTS] += saves_s - in_steps_s
    parts[RESTARTS] += lost_s / max(1, num_steps)
    for waiting in (COMMUNICATION, STRAGGLERS) if are_apart else ():
        parts[FIXED] += parts[waiting]
        parts[waiting] = 0.0
    return parts
