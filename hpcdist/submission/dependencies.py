"""`--after [KIND:]RUN`: a run that may start only once others have ended.

What has ended is decided here, from its verdict; what goes on is for the scheduler to wait for, or
locally for the command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from hpcdist.base.errors import UserError
from hpcdist.base.text import nearest
from hpcdist.monitor.states import OPEN_STATES, EndWatch, run_states
from hpcdist.runs.run import Run
from hpcdist.runs.spec import SweepPlace
from hpcdist.runs.sweep import find_runs
from hpcdist.schedulers.base import Dependency, Scheduler

Kind = Literal["ok", "any", "notok"]
_POLL_S = 0.2

KINDS: tuple[Kind, ...] = get_args(Kind)

_WORDS: dict[Kind, Literal["afterok", "afterany", "afternotok"]] = {
    "ok": "afterok",
    "any": "afterany",
    "notok": "afternotok",
}


@dataclass(frozen=True, kw_only=True)
class After:
    """One --after: runs that must have ended."""

    kind: Kind
    """ok: done; any: in whatever way; notok: in another way than done."""
    name: str
    """As the user named them."""
    runs: list[Run]


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
    return [After(kind=kind, name=name, runs=find_runs(runs, name)) for kind, name in parsed]


def settle(
    afters: Sequence[After],
    scheduler: Scheduler,
    *,
    note: Callable[[str], None] = lambda _: None,
) -> list[Dependency]:
    """Return what the scheduler has to wait for; where it cannot, wait here and `note` for what.

    Raises UserError where the new run can never start, or a run is elsewhere.
    """
    waiting = _still_open(afters, scheduler.name)
    if scheduler.has_queue:
        return [
            Dependency(kind=_WORDS[after.kind], job_ids=_job_ids(after, scheduler))
            for after in waiting
            if after.runs
        ]
    for after in waiting:
        for run in after.runs:
            note(f"waiting for the end of run {run.id} (--after {after.kind}:{after.name})")
            EndWatch([run]).wait(interval_s=_POLL_S)
    _still_open(waiting, scheduler.name)
    return []


def _still_open(afters: Sequence[After], scheduler: str) -> list[After]:
    """Return the runs that have not ended; those that have must have ended as they should."""
    states = run_states(list({run.path: run for after in afters for run in after.runs}.values()))
    for after in afters:
        for run in after.runs:
            state = states[run.id]
            if state not in OPEN_STATES:
                is_done = state == "done"
                if after.kind == ("notok" if is_done else "ok"):
                    prefix, needed = ("notok:", "failed") if is_done else ("", "done")
                    raise UserError(
                        f"--after {prefix}{after.name}: run {run.id} is {state}, and the new run "
                        f"needs it {needed}",
                        hint=f"--after any:{after.name} starts however it ended",
                    )
            elif (its := run.read_scheduler()) != scheduler:
                raise UserError(
                    f"--after {after.name}: run {run.id} is active on {its}, and the new "
                    f"run is for {scheduler}, which cannot wait for it",
                    hint="submit again when it has ended, or submit both to the same scheduler",
                )
    return [
        replace(after, runs=[run for run in after.runs if states[run.id] in OPEN_STATES])
        for after in afters
    ]


def _job_ids(after: After, scheduler: Scheduler) -> list[str]:
    ids = {run.id: run.read_job_id() for run in after.runs}
    for run_id, job_id in ids.items():
        if job_id is None:
            raise UserError(
                f"--after {after.name}: run {run_id} is being submitted, and has no job yet",
                hint="try again in a moment",
            )
    job_ids = [job_id for job_id in ids.values() if job_id is not None]
    if after.kind == "notok":  # an array has failed where one of its runs has; here each must
        return job_ids
    # Of a sweep all of whose runs are waited for, the names of its arrays do for them.
    places = [run.read_sweep_place() or SweepPlace() for run in after.runs]
    counts = Counter(place.id for place in places)
    names = [
        scheduler.dependency_id(job_id) if counts[place.id] == place.num_points else job_id
        for job_id, place in zip(job_ids, places, strict=True)
    ]
    return list(dict.fromkeys(names))
