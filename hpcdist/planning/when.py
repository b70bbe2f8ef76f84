"""The start of a job, as its scheduler foresees it, and that of smaller requests.

Slurm alone says when (`sbatch --test-only`), at the latest; LSF and PBS say what is free now. A job
whose time limit reaches into a maintenance of the nodes waits until that is over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdist.base.errors import HpcdistError, SchedulerError
from hpcdist.cluster.load import all_profiles, load_profile
from hpcdist.cluster.site import Partition
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Scheduler, Start
from hpcdist.schedulers.request import as_limit, time_limit_min
from hpcdist.submission.plan import PlannedRun
from hpcdist.submission.workspace import PLACEHOLDER_ID

_MOST_QUESTIONS = 6
_WORTH_S = 60.0
"""A smaller request that starts so little sooner is not named."""
_MARGIN_MIN = 2.0
"""From the question to the submission."""


class When(Struct, frozen=True, kw_only=True):
    """When a job would start; times are Unix times, and None where nothing is known."""

    start: Start
    maintenance_s: float | None = None
    """Begin of the maintenance that its time limit reaches into."""
    longest_min: float | None = None
    """Longest time limit with which it would start before that."""
    sooner: dict[str, float] = {}
    """Options of requests that would start sooner -> when; the soonest first."""
    notes: list[str] = []


def ask_start(planned: PlannedRun, *, timeout_s: float = 10.0) -> Start:
    """Ask the scheduler of a planned run. Raises SchedulerError where it does not answer."""
    target = planned.target(Run(Path.cwd() / PLACEHOLDER_ID))
    return planned.scheduler.foresee(planned.loaded.job, planned.plan, target, timeout_s)


def ask_when(planned: PlannedRun, *, now_s: float) -> When:
    """Ask of the run, and then of smaller requests and other profiles, beside each other.

    Raises SchedulerError where the scheduler does not answer.
    """
    scheduler, cluster = planned.scheduler, planned.plan.cluster
    if not scheduler.has_queue:
        return When(start=ask_start(planned))
    outlook = partial(scheduler.outlook, cluster)
    questions = (partial(ask_start, planned), partial(_partitions, scheduler), outlook)
    start, partitions, (begins, notes) = _beside(*questions)
    limit_min = time_limit_min(planned.loaded.job, cluster)
    if too_long := why_too_long(partitions, cluster.partition, limit_min):
        start = Start(never=too_long)
    reached = [one for one in begins if now_s < one < now_s + (limit_min or math.inf) * 60]
    begin_s = min(reached, default=math.inf)
    longest_min = longest_before(begin_s, now_s=now_s) if reached else None
    others = dict(_smaller(planned, [longest_min, limit_min and limit_min // 4]))
    starts = dict(
        zip(others, _beside(*(partial(_ask_other, one) for one in others.values())), strict=True)
    )
    is_before = starts.get(f"--time {as_limit(longest_min or 0)}", math.inf) < begin_s
    worth = [(one, name) for name, one in starts.items() if one < (start.time_s or 0) - _WORTH_S]
    return When(
        start=start,
        maintenance_s=min(reached, default=None),
        longest_min=longest_min if is_before else None,
        sooner={name: one for one, name in sorted(worth)},
        notes=notes,
    )


def _partitions(scheduler: Scheduler) -> Sequence[Partition]:
    with suppress(SchedulerError):  # not all of them tell
        return scheduler.detect_site().partitions
    return ()


def _ask_other(planned: PlannedRun) -> float:
    with suppress(HpcdistError):  # one that is refused does not start sooner
        return ask_start(planned).time_s or math.inf
    return math.inf


def _beside(*calls: Callable[[], Any]) -> list[Any]:
    from concurrent.futures import ThreadPoolExecutor  # which takes 10 ms

    with ThreadPoolExecutor(_MOST_QUESTIONS) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]


def _smaller(
    planned: PlannedRun, limits: Sequence[float | None]
) -> Iterator[tuple[str, PlannedRun]]:
    """Yield options that make a request smaller, or send it elsewhere, with the plan of each."""
    asked, scheduler, own = planned.loaded.job.resources, planned.scheduler, planned.cluster.name
    requests: list[tuple[str, dict[str, Any]]] = [
        (f"--time {as_limit(one)}", {"time_limit_min": one}) for one in limits if one
    ]
    requests += [(f"--nodes {half}", {"nodes": half}) for half in [asked.nodes // 2] if half]
    is_typed = planned.cluster.origins["partition"].startswith("--")  # of no other profile
    names = () if own is None or is_typed else all_profiles()[1]
    requests += [(f"--cluster {name}", {}) for name in names if name != own]
    for options, changes in requests[:_MOST_QUESTIONS]:
        with suppress(HpcdistError):  # it cannot run there
            cluster = planned.cluster if changes else load_profile(options.split()[1])
            is_there = cluster.profile.scheduler in {"auto", scheduler.name}
            if changes or (is_there and not cluster.profile.host):
                loaded = planned.loaded.with_job(resources=replace(asked, **changes))
                plan = scheduler.plan(loaded.job, cluster.asked)
                yield options, replace(planned, loaded=loaded, cluster=cluster, plan=plan)


def why_too_long(
    partitions: Sequence[Partition], name: str | None, limit_min: float | None
) -> str | None:
    """Return why a partition starts no job with this time limit; Slurm's --test-only accepts what
    is too long (seen with 22.05), and the job waits for ever."""
    asked = [one for one in partitions if one.name == name or (one.is_default and name is None)]
    most_min = min((one.time_limit_min or math.inf for one in asked), default=math.inf)
    is_short = most_min < (limit_min or 0)
    return f"{asked[0].name} allows --time {as_limit(most_min)} at most" if is_short else None


def longest_before(begin_s: float, *, now_s: float) -> float | None:
    """Return the longest round time limit, in minutes, of a job that starts in a moment and ends
    before a maintenance; None where that is too close."""
    left_min = (begin_s - now_s) / 60 - _MARGIN_MIN
    step = 30 if left_min >= 180 else 5 if left_min >= 30 else 1
    return step * (left_min // step) if left_min >= 1 else None


# As people read it.


def show_length(seconds: float) -> str:
    """Return `45 s`, `12 min`, `3 h 20 min`, `2 d 3 h`."""
    if seconds < 100:
        return f"{seconds:.2g} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    days, hours = divmod(hours, 24)
    parts = [f"{value} {unit}" for value, unit in ((days, "d"), (hours, "h"), (minutes, "min"))]
    return " ".join([one for one in parts if not one.startswith("0 ")][:2])


def show_moment(time_s: float, now_s: float) -> str:
    """Return `at once`, `14:05` of today, `Friday 06:00` of the next days, else with the date."""
    if time_s < now_s + 30:
        return "at once"
    moment = time.localtime(time_s)
    if moment[:3] == time.localtime(now_s)[:3]:
        return time.strftime("%H:%M", moment)
    return time.strftime("%A %H:%M" if time_s - now_s < 6 * 86400 else "%Y-%m-%d %H:%M", moment)


def start_sentence(start: Start, now_s: float) -> str:
    """Return when a job would start, in a sentence; empty where nothing is known."""
    if start.never:
        return f"it would not start: {start.never}"
    if start.time_s is not None:
        moment = show_moment(start.time_s, now_s)
        wait = f", in {show_length(start.time_s - now_s)}, at the latest"
        return f"{moment}{'' if moment == 'at once' else wait}, as things stand"
    free = {None: "", True: "what it asks for is free now", False: "not enough is free now"}
    return free[start.is_free]
