"""The start of a job, as its scheduler foresees it, and that of smaller requests; and what a
submission keeps of all that was foreseen. Light: every submission imports it.

Slurm alone says when (`sbatch --test-only`), at the latest; LSF and PBS say what is free now. A job
whose time limit reaches into a maintenance of the nodes waits until that is over.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, SchedulerError
from hpcdist.cluster.load import all_profiles, load_profile
from hpcdist.cluster.site import Partition
from hpcdist.job.spec import job_to_dict
from hpcdist.runs.run import Run, make_runs_folder
from hpcdist.runs.spec import Planned
from hpcdist.schedulers.base import Start
from hpcdist.schedulers.request import as_limit, time_limit_min
from hpcdist.submission.plan import PlannedRun
from hpcdist.submission.workspace import PLACEHOLDER_ID

_FOLDER = ".plans"
"""In the folder of the runs: hidden, so that nothing takes it for a run."""
_KEPT_S = 24 * 3600.0
_AT_SUBMISSION_S = 1.0
_MOST_QUESTIONS = 6
_WORTH_S = 60.0
"""A smaller request that starts so little sooner is not named."""
_MARGIN_MIN = 2.0
"""From the question to the submission."""


class When(msgspec.Struct, frozen=True, kw_only=True):
    """When a job would start; times are Unix times, and None where nothing is known."""

    start: Start = Start()
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
    """Ask of the run, and beside it of smaller requests and other profiles."""
    from concurrent.futures import ThreadPoolExecutor  # which takes 10 ms

    scheduler, cluster = planned.scheduler, planned.plan.cluster
    limit_min = time_limit_min(planned.loaded.job, cluster)
    begins, notes = scheduler.outlook(cluster)
    reached = [one for one in begins if now_s < one < now_s + (limit_min or math.inf) * 60]
    begin_s = min(reached, default=now_s)
    longest_min = round_limit((begin_s - now_s) / 60 - _MARGIN_MIN, math.floor) or None
    others = dict(_smaller(planned, [longest_min, limit_min and limit_min // 4]))
    partitions: Sequence[Partition] = ()
    with suppress(SchedulerError):  # not all of them tell
        partitions = scheduler.detect_site().partitions

    def ask(one: PlannedRun) -> Start:
        own = one.plan.cluster
        own_limit_min = time_limit_min(one.loaded.job, own)
        if too_long := why_too_long(partitions, own.partition, own_limit_min):
            return Start(says=f"it would not start: {too_long}")
        try:
            return ask_start(one)
        except HpcdistError as error:  # what is refused does not start sooner
            return Start(says=error.message)

    with ThreadPoolExecutor() as pool:
        start, *starts = pool.map(ask, [planned, *others.values()])
    times = [one.time_s or math.inf for one in starts]
    soonest = dict(sorted(zip(others, times, strict=True), key=itemgetter(1)))
    is_in_time = soonest.get(f"--time {as_limit(longest_min or 0)}", math.inf) < begin_s
    return When(
        start=start,
        maintenance_s=min(reached, default=None),
        longest_min=longest_min if is_in_time else None,
        sooner={name: at for name, at in soonest.items() if at < (start.time_s or 0) - _WORTH_S},
        notes=notes,
    )


def _smaller(
    planned: PlannedRun, limits: Sequence[float | None]
) -> Iterator[tuple[str, PlannedRun]]:
    """Yield options that make a request smaller, or send it elsewhere, with the plan of each."""
    asked, scheduler, own = planned.loaded.job.resources, planned.scheduler, planned.cluster
    requests: list[tuple[str, dict[str, Any]]] = [
        *((f"--time {as_limit(one)}", {"time_limit_min": one}) for one in limits if one),
        *((f"--nodes {half}", {"nodes": half}) for half in [asked.nodes // 2] if half),
        *((f"--cluster {name}", {}) for name in all_profiles()[1] if own.name not in {None, name}),
    ]
    for option, changes in requests[:_MOST_QUESTIONS]:
        with suppress(HpcdistError):  # it cannot run there
            cluster = own if changes else load_profile(option.split()[1])
            is_there = cluster.profile.scheduler in {"auto", scheduler.name}
            if changes or (is_there and not cluster.profile.host):
                loaded = planned.loaded.with_job(resources=replace(asked, **changes))
                plan = scheduler.plan(loaded.job, cluster.asked)
                yield option, replace(planned, loaded=loaded, cluster=cluster, plan=plan)


def why_too_long(
    partitions: Sequence[Partition], name: str | None, limit_min: float | None
) -> str | None:
    """Return why a partition starts no job with this time limit; Slurm's --test-only accepts what
    is too long (seen with 22.05), and the job waits for ever."""
    for one in partitions:
        is_asked = one.is_default if name is None else one.name == name
        most_min = one.time_limit_min or math.inf
        if is_asked and most_min < (limit_min or 0):
            return f"{one.name} allows --time {as_limit(most_min)} at most"
    return None


def round_limit(minutes: float, rounded: Callable[[float], int]) -> float:
    """Return a time limit in minutes as people give it, rounded up or down; none is below 0."""
    step = 30 if minutes >= 180 else 5 if minutes >= 10 else 1
    return max(0, step * rounded(minutes / step))


# What a submission keeps.


def _kept_file(planned: PlannedRun, runs: Path) -> Path:
    content = [job_to_dict(planned.loaded.job), planned.scheduler.name, planned.cluster.name]
    return runs / _FOLDER / hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]


def keep(values: Planned, planned: PlannedRun, runs: Path) -> None:
    """Keep what is foreseen of a job for its submission, in a private folder."""
    file = _kept_file(planned, runs)
    with suppress(OSError, HpcdistError):  # the plan is shown all the same
        make_runs_folder(runs)
        file.parent.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
        files.write_json(file, msgspec.to_builtins(values))
        for one in file.parent.iterdir():
            if time.time() - one.stat().st_mtime > _KEPT_S:
                one.unlink()


def foresee(planned: PlannedRun, runs: Path) -> tuple[Start, Planned | None]:
    """Return when a run that is being submitted would start, if its scheduler says so at once, and
    all that is foreseen of it, also by a plan of the last day; None: nothing."""
    start, kept, file, now_s = Start(), None, _kept_file(planned, runs), time.time()
    if planned.scheduler.has_queue:
        with suppress(HpcdistError, OSError, ValueError):
            start = ask_start(planned, timeout_s=_AT_SUBMISSION_S)
    with suppress(OSError), files.open_private(file):  # of nobody else's making
        if now_s - file.stat().st_mtime < _KEPT_S:
            kept = files.read_as(file, Planned)
    if start.time_s is not None:
        kept = replace(kept or Planned(), wait_s=max(0.0, start.time_s - now_s))
    return start, kept


# As people read it.


def show_moment(time_s: float, now_s: float) -> str:
    """Return `at once`, `Friday 06:00` of the next days, else with the date."""
    if time_s < now_s + 30:
        return "at once"
    form = "%A %H:%M" if time_s - now_s < 6 * 86400 else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(time_s))


def start_sentence(start: Start, now_s: float) -> str:
    """Return when a job would start, in a sentence; empty where nothing is known."""
    if start.time_s is None:
        return start.says
    moment, wait = show_moment(start.time_s, now_s), as_limit((start.time_s - now_s) / 60)
    wait = "" if moment == "at once" else f", in {wait}, at the latest"
    return f"{moment}{wait}, as things stand"


def start_lines(start: When, now_s: float) -> Iterator[str]:
    """Yield all that is known of a start, one line each."""
    yield start_sentence(start.start, now_s) or "not known before it is submitted"
    if start.maintenance_s is not None:
        means = "its time limit makes it wait for the end of"
        if start.longest_min is not None:
            means = f"--time {as_limit(start.longest_min)} or less starts before"
        yield f"{means} the maintenance on {show_moment(start.maintenance_s, now_s)}"
    for name, time_s in start.sooner.items():
        yield f"  {name:<20} {show_moment(time_s, now_s)}"
    yield from start.notes
