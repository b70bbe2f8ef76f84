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
from hpcdist.base.text import nearest
from hpcdist.monitor.states import OPEN_STATES, EndWatch, run_states
from hpcdist.runs.run import Run, find_runs
from hpcdist.runs.spec import SweepPlace
from hpcdist.schedulers.base import Dependency, Scheduler
from hpcdist.schedulers.tasks import array_of

After = tuple[str, str, list[Run]]
"""One --after: its kind, the name as the user gave it, and the runs."""
_POLL_S = 0.2
_WORDS: dict[str, Literal["afterok", "afterany", "afternotok"]] = {
    "ok": "afterok",
    "any": "afterany",
    "notok": "afternotok",
}
"""Kind -> the schedulers' word: the runs must be done, have ended, or ended without success."""


def parse_after(text: str) -> tuple[str, str]:
    """Split `[KIND:]RUN`; UserError for another kind."""
    word, colon, name = text.partition(":")
    if not colon or "/" in word:  # a path may hold colons
        return "ok", text
    if word in _WORDS and name:
        return word, name
    near = nearest(word, _WORDS)
    raise UserError(
        f"--after {text}: must be RUN or KIND:RUN, with KIND one of {', '.join(_WORDS)}",
        hint=f"did you mean {near}:{name or 'RUN'}?" if near else "for example --after any:last",
    )


def find_afters(runs: Path, texts: Sequence[str]) -> list[After]:
    """Return the runs that --after names; UserError where there are none by a name."""
    return [(kind, name, find_runs(runs, name)) for kind, name in map(parse_after, texts)]


def settle(
    afters: Sequence[After],
    scheduler: Scheduler,
    *,
    note: Callable[[str], None] = lambda _: None,
) -> list[Dependency]:
    """Return what the scheduler has to wait for; where it cannot, wait here and `note` for what.

    Raises UserError where the new run can never start, or a run is elsewhere.
    """
    still_open = [(*after, _still_open(*after, scheduler.name)) for after in afters]
    dependencies = []
    for kind, name, _, waiting in still_open:
        if scheduler.has_queue and waiting:
            job_ids = _job_ids(kind, name, waiting)
            dependencies.append(Dependency(kind=_WORDS[kind], job_ids=job_ids))
        elif waiting:
            for run in waiting:
                note(f"waiting for the end of run {run.id} (--after {kind}:{name})")
                EndWatch([run]).wait(interval_s=_POLL_S)
            _still_open(kind, name, waiting, scheduler.name)
    return dependencies


def _still_open(kind: str, name: str, runs: Sequence[Run], scheduler: str) -> list[Run]:
    """Return the runs that have not ended; those that have must have ended as they should."""
    states = run_states(runs)
    for run in runs:
        state, is_done = states[run.id], states[run.id] == "done"
        if state in OPEN_STATES:
            if (its := run.read_scheduler()) != scheduler:
                raise UserError(
                    f"--after {name}: run {run.id} is active on {its}, and the new run is for "
                    f"{scheduler}, which cannot wait for it",
                    hint="submit again when it has ended, or submit both to the same scheduler",
                )
        elif kind == ("notok" if is_done else "ok"):
            prefix, needed = ("notok:", "failed") if is_done else ("", "done")
            raise UserError(
                f"--after {prefix}{name}: run {run.id} is {state}, and the new run needs it "
                f"{needed}",
                hint=f"--after any:{name} starts however it ended",
            )
    return [run for run in runs if states[run.id] in OPEN_STATES]


def _job_ids(kind: str, name: str, runs: Sequence[Run]) -> list[str]:
    job_ids = []
    # Of a sweep all of whose runs are waited for, the names of its arrays do for them. But an array
    # has failed where one of its runs has; for `notok` each must.
    places = [run.spec.sweep or SweepPlace() for run in runs]
    counts = Counter(place.id for place in places)
    for run, place in zip(runs, places, strict=True):
        if (job_id := run.read_job_id()) is None:
            raise UserError(
                f"--after {name}: run {run.id} is being submitted, and has no job yet",
                hint="try again in a moment",
            )
        is_whole = kind != "notok" and counts[place.id] == place.num_points
        job_ids.append(array_of(job_id) if is_whole else job_id)
    return list(dict.fromkeys(job_ids))
