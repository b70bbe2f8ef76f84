"""`--after [KIND:]RUN`: a run that may start only once others have ended.

What has ended is decided here, from its verdict; what goes on is for the scheduler to wait for, or
locally for the command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from hpcdist.base.errors import UserError
from hpcdist.monitor.states import OPEN_STATES, EndWatch, run_states
from hpcdist.runs.run import Run, find_runs
from hpcdist.runs.spec import SweepPlace
from hpcdist.schedulers.base import Dependency, Scheduler
from hpcdist.schedulers.tasks import array_of

After = tuple[str, str, list[Run]]
"""One --after: its kind, the name as the user gave it, and the runs."""
_POLL_S = 0.2
_WORDS: dict[str, Literal["afterok", "afterany"]] = {"ok": "afterok", "any": "afterany"}
"""Kind -> the schedulers' word: the runs must be done, or must have ended in any way."""


def find_after(runs: Path, text: str) -> After:
    """Return the runs that `[KIND:]RUN` names; UserError for another kind, or where there are none
    by this name."""
    kind, colon, name = text.partition(":")
    if not colon or "/" in kind:  # a path may hold colons
        kind, name = "ok", text
    if kind not in _WORDS or not name:
        raise UserError(
            f"--after {text}: must be RUN or KIND:RUN, with KIND one of {', '.join(_WORDS)}",
            hint="for example --after any:last",
        )
    return kind, name, find_runs(runs, name)


def settle(
    afters: Sequence[After],
    scheduler: Scheduler,
    *,
    note: Callable[[str], None] = lambda _: None,
) -> list[Dependency]:
    """Return what the scheduler has to wait for; where it cannot, wait here and `note` for what.

    Raises UserError where the new run can never start, or a run is elsewhere.
    """
    dependencies = []
    for kind, name, runs in afters:
        waiting = _still_open(kind, name, runs, scheduler.name)
        if scheduler.has_queue and waiting:
            dependencies.append(Dependency(kind=_WORDS[kind], job_ids=_job_ids(name, waiting)))
        elif waiting:
            listed = ", ".join(run.id for run in waiting)
            note(f"waiting for the end of run {listed} (--after {kind}:{name})")
            EndWatch(waiting).wait(interval_s=_POLL_S)
            _still_open(kind, name, runs, scheduler.name)
    return dependencies


def _still_open(kind: str, name: str, runs: Sequence[Run], scheduler: str) -> list[Run]:
    """Return the runs that have not ended; those that have must have ended as they should."""
    states = run_states(runs)
    waiting = [run for run in runs if states[run.id] in OPEN_STATES]
    for run in runs:
        if kind == "ok" and run not in waiting and states[run.id] != "done":
            raise UserError(
                f"--after {name}: run {run.id} is {states[run.id]}, and the new run needs it done",
                hint=f"--after any:{name} starts however it ended",
            )
    for run in waiting:
        if (its := run.read_scheduler()) != scheduler:
            raise UserError(
                f"--after {name}: run {run.id} is active on {its}, and the new run is for "
                f"{scheduler}, which cannot wait for it",
                hint="submit again when it has ended, or submit both to the same scheduler",
            )
    return waiting


def _job_ids(name: str, runs: Sequence[Run]) -> list[str]:
    """Return the ids to wait for: where all runs of a sweep are, those of its arrays."""
    job_ids = []
    places = [run.spec.sweep or SweepPlace() for run in runs]
    counts = Counter(place.id for place in places)
    for run, place in zip(runs, places, strict=True):
        if (job_id := run.read_job_id()) is None:
            raise UserError(
                f"--after {name}: run {run.id} is being submitted, and has no job yet",
                hint="try again in a moment",
            )
        is_whole = counts[place.id] == place.num_points
        job_ids.append(array_of(job_id) if is_whole else job_id)
    return list(dict.fromkeys(job_ids))
