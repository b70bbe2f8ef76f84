"""Bringing home what summaries need of runs: their states, and by rsync their small files and
events."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Container, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, SchedulerError, UserError
from hpcdist.base.text import number_of
from hpcdist.remote.command import Note, Verb
from hpcdist.remote.ssh import Connection, Where
from hpcdist.runs.remote import Remote, is_remote, read_remote, write_remote
from hpcdist.runs.run import ID, SWEEP_FILE, Run, make_runs_folder

_SMALL = ("spec.json", "submission.json", "verdict.json", SWEEP_FILE)
_OF_ATTEMPTS = ("attempts/", "attempts/*/", "attempts/*/begin.json", "attempts/*/verdict.json")
_OF_EVENTS = ("events/", "events/*.jsonl")
_SETTLED_S = 600.0
"""So long after its end all files of a run are seen by all hosts."""


class _Listed(msgspec.Struct, frozen=True):
    """One run, as `hpcdist runs --json` lists it."""

    run: str
    path: str
    state: str
    reason: str | None = None
    sweep: dict[str, Any] | None = None


def by_place(runs: Sequence[Run]) -> dict[Where | None, list[Run]]:
    """Group runs by where they are; None: here."""
    groups: dict[Where | None, list[Run]] = defaultdict(list)
    for run in runs:
        remote = read_remote(run)
        groups[None if remote is None else Where.of(run, remote)].append(run)
    return dict(groups)


def refresh(runs: Sequence[Run], *, with_events: bool, note: Note) -> None:
    """Bring what has changed of runs at hosts; those that were brought whole are not asked for.

    Runs at a host that does not answer stay as they are, and `note` says so.
    """
    pending = [run for run in runs if (it := read_remote(run)) is not None and not it.is_whole]
    try:
        groups = by_place(pending)
    except UserError as error:
        note(error.message)
        return
    for where, theirs in groups.items():
        assert where is not None
        try:
            wanted = {run.id for run in theirs}
            folder = theirs[0].path.parent
            with Connection(where.host) as connection:
                bring(connection, where, folder, wanted, with_events=with_events)
        except HpcdistError as error:
            listed = number_of(len(theirs), "run")
            note(f"{listed} shown as last known here: {error.message}")


def bring(
    connection: Connection,
    where: Where,
    runs: Path,
    wanted: Container[str] | None = None,
    *,
    with_events: bool,
) -> None:
    """Write what has changed of the runs at a host into the folder of the runs here; those of this
    machine with such a name stay as they are. Without events, their states are enough.

    `wanted` are names of runs and sweeps; None: all.
    """
    script = Verb(where=where, argv=["runs", "--json"]).script(connection)
    code, out = connection.call(script, is_captured=True)
    if code:
        raise SchedulerError(f"{where.host.name} cannot list its runs: exit code {code}")
    try:
        listed = msgspec.json.decode(out, type=list[_Listed])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SchedulerError(f"what {where.host.name} sent cannot be read: {error}") from None
    make_runs_folder(runs)
    brought, names = [], []
    for one in listed:
        sweep = str((one.sweep or {}).get("id") or "")
        if wanted is None or one.run in wanted or sweep in wanted:
            brought += [one] if _is_to_bring(runs, one.run) else []
            if ID.fullmatch(sweep) and "/" not in sweep and not os.path.lexists(runs / sweep):
                names.append(sweep)
    if not brought:
        return
    folder = os.path.dirname(brought[0].path)
    names += [one.run for one in brought]
    patterns = [*_SMALL, *_OF_ATTEMPTS, *(_OF_EVENTS if with_events else ())]
    rules = [*(f"/{name}/" for name in names), *(f"/*/{pattern}" for pattern in patterns)]
    connection.copy(
        [
            *("-rt", "--chmod=D700,F600", "--max-size=1g"),
            *("--include-from=-", "--exclude=*", f"{where.host.name}:{folder}/", f"{runs}/"),
        ],
        given="".join(f"{rule}\n" for rule in rules).encode(),
    )
    for one in brought:
        verdict = Run(runs / one.run).read_verdict()
        ended_s = verdict.time_s if verdict is not None else None
        remote = Remote(
            host=where.host.name,
            folder=where.host.folder,
            project=where.project,
            runs=folder,
            condition={"state": one.state, "reason": one.reason},
            is_whole=with_events and ended_s is not None and time.time() - ended_s > _SETTLED_S,
        )
        write_remote(runs / one.run, remote)


def _is_to_bring(runs: Path, name: str) -> bool:
    """Return whether a run may be written here, into a folder that is there then."""
    if not ID.fullmatch(name) or "/" in name:
        return False
    folder = runs / name
    with suppress(FileExistsError):
        folder.mkdir(mode=files.PRIVATE_FOLDER)
        return True
    return is_remote(Run(folder)) and not folder.is_symlink()
