"""Bringing home what summaries need of runs: their small files and events, by rsync, and their
states."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, SchedulerError
from hpcdist.monitor.states import run_accounting, run_conditions
from hpcdist.remote.call import Output, call
from hpcdist.remote.request import Listed, ListedRun, Request, decode
from hpcdist.remote.ssh import Connection, Where, copy
from hpcdist.runs.remote import Remote, is_remote, known_hosts, read_remote, write_remote
from hpcdist.runs.run import ID, Run, all_runs, make_runs_folder
from hpcdist.runs.spec import RunSpec
from hpcdist.runs.sweep import SWEEP_FILE
from hpcdist.submission.once import SUBMISSION_VARIABLE

_SMALL = ("spec.json", "submission.json", "verdict.json", SWEEP_FILE)
_OF_ATTEMPTS = ("attempts/", "attempts/*/", "attempts/*/begin.json", "attempts/*/verdict.json")
_OF_EVENTS = ("events/", "events/*.jsonl")
_MOST_FILE = "1g"
_SETTLED_S = 600.0
"""So long after its end a job that no accounting has will not get into it."""

Note = Callable[[str], None]


# At the host.


def list_runs(request: Request, runs: Path) -> bytes:
    """Return the list of the runs that are asked for, as JSON."""
    found = all_runs(runs)
    if request.submission is not None:
        found = [run for run in found if _submission_of(run) == request.submission]
    elif request.wanted is not None:
        wanted = set(request.wanted)
        found = [run for run in found if run.id in wanted]
    notes: list[str] = []
    conditions = run_conditions(found, warn=notes.append)
    accounting = run_accounting(found, warn=notes.append) if request.accounting else {}
    places = [place for run in found if (place := run.read_sweep_place()) is not None]
    listed = Listed(
        runs=[
            ListedRun(
                id=run.id,
                condition=conditions.get(run.id),
                accounting=accounting.get(run.id),
                is_settled=_is_settled(run, has_books=accounting.get(run.id) is not None),
            )
            for run in found
        ],
        folder=str(runs),
        sweeps=sorted({place.id for place in places if place.id}),
        notes=notes,
    )
    return msgspec.json.encode(listed)


def _submission_of(run: Run) -> str | None:
    return (run.read_spec() or RunSpec()).environment.get(SUBMISSION_VARIABLE)


def _is_settled(run: Run, *, has_books: bool) -> bool:
    verdict = run.read_verdict()
    if verdict is None:
        return False
    return has_books or (verdict.time_s is not None and time.time() - verdict.time_s > _SETTLED_S)


# At the laptop.


def by_place(runs: Sequence[Run]) -> dict[Where | None, list[Run]]:
    """Group runs by where they are; None: here."""
    groups: dict[Where | None, list[Run]] = defaultdict(list)
    for run in runs:
        remote = read_remote(run)
        groups[None if remote is None else Where.of(run, remote)].append(run)
    return dict(groups)


def refresh(runs: Sequence[Run], *, with_events: bool, note: Note) -> bool:
    """Bring what has changed of runs at hosts; those that were brought whole are not asked for.

    Of a host that does not answer the runs stay as they are, `note` is told, and False returned.
    """
    open_runs, have_answered = [], True
    for run in runs:
        remote = read_remote(run)
        if remote is not None and not remote.is_whole:
            if remote.host in known_hosts():
                open_runs.append(run)
            else:
                have_answered = False
                note(f"run {run.id} is said to be at {remote.host}, which was never named here")
    for where, theirs in by_place(open_runs).items():
        if where is None:
            continue
        try:
            with Connection(where.host) as connection:
                request = request_to(where, wanted=[run.id for run in theirs])
                folder = theirs[0].path.parent
                bring(connection, where, request, folder, with_events=with_events, note=note)
        except HpcdistError as error:
            number = "1 run is" if len(theirs) == 1 else f"{len(theirs)} runs are"
            note(f"{number} shown as last known here: {error.message}")
            have_answered = False
    return have_answered


def bring_all(where: Where, runs: Path, *, note: Note) -> None:
    """Bring what has changed of all runs of a project at a host."""
    with Connection(where.host) as connection:
        bring(connection, where, request_to(where), runs, with_events=True, note=note)


def request_to(where: Where, **fields: object) -> Request:
    """Return a request about the project of a place."""
    request = Request(folder=where.host.folder, project=where.project, runs=where.runs)
    return msgspec.structs.replace(request, **fields)


def bring(
    connection: Connection,
    where: Where,
    request: Request,
    runs: Path,
    *,
    with_events: bool,
    note: Note,
) -> Listed:
    """Ask for runs, and write what has changed of them into the folder of the runs here; those of
    this machine with such a name stay as they are. Without events, their states are enough."""
    request = msgspec.structs.replace(request, accounting=with_events)
    output = Output(captured=True)
    if code := call(connection, request, output):
        raise SchedulerError(f"{where.host.name} cannot list its runs: exit code {code}")
    assert output.captured is not None
    listed: Listed = decode(bytes(output.captured), Listed)
    for text in listed.notes:
        note(f"{where.host.name}: {text}")
    make_runs_folder(runs)
    brought = [one for one in listed.runs if _is_to_bring(runs, one)]
    names = [one.id for one in brought]
    sweeps = filter(ID.fullmatch, listed.sweeps)
    names += [name for name in sweeps if "/" not in name and not os.path.lexists(runs / name)]
    if names:
        patterns = [*_SMALL, *_OF_ATTEMPTS, *(_OF_EVENTS if with_events else ())]
        rules = [*(f"/{name}/" for name in names), *(f"/*/{pattern}" for pattern in patterns)]
        copy(
            connection,
            [
                *("-rt", "--chmod=D700,F600", f"--max-size={_MOST_FILE}"),
                *("--include-from=-", "--exclude=*"),
                f"{where.host.name}:{listed.folder}/",
                f"{runs}/",
            ],
            given="".join(f"{rule}\n" for rule in rules).encode(),
        )
    for one in brought:
        is_whole = with_events and one.is_settled and (runs / one.id / "spec.json").exists()
        write_remote(runs / one.id, _record(where, one, listed.folder, is_whole=is_whole))
    return listed


def _is_to_bring(runs: Path, one: ListedRun) -> bool:
    """Return whether a run may be written here, into a folder that is there then."""
    if not ID.fullmatch(one.id) or "/" in one.id:
        return False
    folder = runs / one.id
    if is_remote(Run(folder)) and not folder.is_symlink():
        return True
    with suppress(FileExistsError):
        folder.mkdir(mode=files.PRIVATE_FOLDER)
        return True
    return False


def _record(where: Where, one: ListedRun, folder: str, *, is_whole: bool) -> Remote:
    return Remote(
        host=where.host.name,
        folder=where.host.folder,
        project=where.project,
        runs=folder,
        condition=msgspec.to_builtins(one.condition),
        accounting=msgspec.to_builtins(one.accounting),
        is_whole=is_whole,
    )
