"""`--after [KIND:]RUN`: a run that may start only once others have ended.

What has ended is decided here, from its verdict; what goes on is for the scheduler to wait for, or
locally for the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from hpcdist.base.errors import UserError
from hpcdist.base.text import nearest
from hpcdist.monitor.ends import EndWatch
from hpcdist.monitor.states import OPEN_STATES, run_states
from hpcdist.runs.run import Run
from hpcdist.runs.sweep import Sweep, find_runs
from hpcdist.runs.verdict import State
from hpcdist.schedulers.base import Dependency, Scheduler

Kind = Literal["ok", "any", "notok"]
_POLL_S = 0.2

KINDS: tuple[Kind, ...] = get_args(Kind)

_WORDS: dict[Kind, Literal["afterok", "afterany", "afternotok"]] = {
    "ok": "afterok",
    "any": "afterany",
    "notok": "afternotok",
}


class After(msgspec.Struct, frozen=True, kw_only=True):
    """One --after: runs that must have ended."""

    kind: Kind
    """ok: done; any: in whatever way; notok: in another way than done."""
    name: str
    """As the user named them."""
    runs: list[str]
    """Paths of the runs."""


def parse_after(text: str) -> tuple[Kind, str]:
    """Split `[KIND:]RUN`; UserError for another kind."""
    word, colon, name = text.partition(":")
    if not colon or "/" in word:  # a path may hold colons
        return "ok", text
    for kind in KINDS:
        if word == kind and name:
            return kind, name
    near = nearest(word, KINDS)
    raise UserError(
        f"--after {text}: must be RUN or KIND:RUN, with KIND one of {', '.join(KINDS)}",
        hint=f"did you mean {near}:{name or 'RUN'}?" if near else "for example --after any:last",
    )


def find_afters(runs: Path, texts: Sequence[str]) -> list[After]:
    """Return the runs that --after names; UserError where there are none by a name."""
    parsed = [parse_after(text) for text in texts]
    return [
        After(kind=kind, name=name, runs=[str(run.path) for run in find_runs(runs, name)])
        for kind, name in parsed
    ]


def open_runs(afters: Sequence[After], scheduler: str) -> list[tuple[After, list[Run]]]:
    """Return the runs that have to be waited for.

    Raises UserError where one ended so that the new run can never start, or is elsewhere.
    """
    runs = {path: Run(Path(path)) for after in afters for path in after.runs}
    states = run_states(list(runs.values()))
    return [
        (after, _still_open(after, [runs[path] for path in after.runs], states, scheduler))
        for after in afters
    ]


def dependencies(
    waiting: Sequence[tuple[After, Sequence[Run]]], scheduler: Scheduler
) -> list[Dependency]:
    """Return what the scheduler is asked to wait for; UserError where a run has no job yet."""
    return [
        Dependency(kind=_WORDS[after.kind], job_ids=_job_ids(after, runs, scheduler))
        for after, runs in waiting
        if runs
    ]


def _still_open(
    after: After, runs: Sequence[Run], states: Mapping[str, State], scheduler: str
) -> list[Run]:
    for run in runs:
        if states[run.id] not in OPEN_STATES:
            _check_ended(after, run, states[run.id])
    found = [run for run in runs if states[run.id] in OPEN_STATES]
    for run in found:
        if (its := run.read_scheduler()) != scheduler:
            raise UserError(
                f"--after {after.name}: run {run.id} goes on with {its}, and the new run is for "
                f"{scheduler}, which cannot wait for it",
                hint="submit again when it has ended, or submit both to the same scheduler",
            )
    return found


def _check_ended(after: After, run: Run, state: State) -> None:
    if after.kind == "ok" and state != "done":
        raise UserError(
            f"--after {after.name}: run {run.id} is {state}, and the new run needs it done",
            hint=f"--after any:{after.name} starts whatever became of it",
        )
    if after.kind == "notok" and state == "done":
        raise UserError(
            f"--after notok:{after.name}: run {run.id} is done, and the new run needs it failed",
            hint=f"--after any:{after.name} starts whatever became of it",
        )


def _job_ids(after: After, runs: Sequence[Run], scheduler: Scheduler) -> list[str]:
    ids = [_job_id(after, run) for run in runs]
    if after.kind == "notok":  # an array has failed where one of its runs has; here each must
        return ids
    whole = _whole_arrays(runs, scheduler)
    names = {job_id: scheduler.dependency_id(job_id) for job_id in ids}
    return list(dict.fromkeys(name if name in whole else job_id for job_id, name in names.items()))


def _job_id(after: After, run: Run) -> str:
    job_id = run.read_job_id()
    if job_id is not None:
        return job_id
    raise UserError(
        f"--after {after.name}: run {run.id} is being submitted, and has no job yet",
        hint="try again in a moment",
    )


def _whole_arrays(runs: Sequence[Run], scheduler: Scheduler) -> set[str]:
    """Return the arrays all of whose runs are waited for: one name does for them."""
    ids = {run.id for run in runs}
    places = [(run.path.parent, place) for run in runs if (place := run.read_sweep_place())]
    folders = {folder / str(place.id) for folder, place in places}
    jobs = [job for folder in folders for job in Sweep(folder).read().jobs]
    return {scheduler.dependency_id(job.job_id) for job in jobs if ids.issuperset(job.runs)}


def wait_for(
    waiting: Sequence[tuple[After, Sequence[Run]]],
    *,
    told: Callable[[str], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Wait here until all of them have ended; `told` hears which, and `check` may raise."""
    for after, runs in waiting:
        for run in runs:
            told(f"waiting for the end of run {run.id} (--after {after.kind}:{after.name})")
            EndWatch([run]).wait(check=check, interval_s=_POLL_S)


def settle(
    afters: Sequence[After],
    scheduler: Scheduler,
    *,
    told: Callable[[str], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> list[Dependency]:
    """Return what the scheduler has to wait for; where it cannot, wait here.

    Raises UserError where the new run can never start.
    """
    waiting = open_runs(afters, scheduler.name)
    if scheduler.has_queue:
        return dependencies(waiting, scheduler)
    wait_for(waiting, told=told, check=check)
    for after, runs in waiting:
        for run, state in zip(runs, run_states(runs).values(), strict=True):
            _check_ended(after, run, state)
    return []
