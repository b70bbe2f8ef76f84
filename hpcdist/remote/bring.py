"""Bringing home what summaries need of runs: their small files and events, as they have grown, and
their states. One round trip for any number of runs of a project.

What comes is as foreign as an archive: names and sizes are checked, and it is written only into
directories that this module has made.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, RunDirectoryError, UserError
from hpcdist.base.progress import track
from hpcdist.base.text import show_bytes
from hpcdist.cluster.host import Host, parse_host
from hpcdist.monitor.states import run_accounting, run_conditions
from hpcdist.remote import wire
from hpcdist.remote.ssh import Connection, connected
from hpcdist.runs.events import MOST_FILE_BYTES
from hpcdist.runs.rank_files import EVENT_FILE, USAGE_FILE, is_event_file, is_place
from hpcdist.runs.remote import (
    BroughtFile,
    Remote,
    is_host_known,
    read_remote,
    remote_file,
    write_remote,
)
from hpcdist.runs.run import Run, all_runs, cannot_write, is_run, is_run_name
from hpcdist.runs.sweep import SWEEP_FILE, is_sweep

_SMALL = ("spec.json", "submission.json", "verdict.json", SWEEP_FILE)
_NAME = re.compile(
    rf"{'|'.join(map(re.escape, _SMALL))}|attempts/\d{{5,9}}/(?:begin|verdict)\.json"
)
_MOST_BYTES = 4_000_000_000
"""Size of all runs together that one answer brings."""
_BLOCK_BYTES = 4096
"""A file takes at least so much of a disk."""
_SETTLED_S = 600.0
"""So long after its end a job that no accounting has will not get into it."""
_CHUNK_BYTES = 1 << 18

Note = Callable[[str], None]


# At the host.


def collect(request: wire.Bring, runs: Path) -> Iterator[bytes]:
    """Give the frames that answer a request: what there is to send, and then its bytes."""
    wanted = request.runs
    if wanted is None:
        names = {run.id for run in all_runs(runs)}
        wanted = [
            wire.WantedRun(id=name, known=request.known.get(name, {})) for name in sorted(names)
        ]
    found = [one for one in wanted if is_run_name(one.id) and _is_there(runs / one.id)]
    listed = [run for run in (Run(runs / one.id) for one in found) if not is_sweep(run.path)]
    notes: list[str] = []
    conditions = run_conditions(listed, warn=notes.append)
    accounting = run_accounting(listed, warn=notes.append) if request.files else {}
    sent = []
    for one in found:
        condition, books = conditions.get(one.id), accounting.get(one.id)
        sent.append(
            wire.SentRun(
                id=one.id,
                runs=str(runs),
                condition=condition,
                accounting=books,
                is_settled=_is_settled(Run(runs / one.id), has_books=books is not None),
                files=list(_changed(runs / one.id, one.known, with_events=request.files)),
            )
        )
    yield wire.message(wire.Brought(runs=sent, notes=notes))
    yield from wire.pack(
        piece
        for run in sent
        for file in run.files
        for piece in _content(runs / run.id / file.name, file)
    )


def _is_there(path: Path) -> bool:
    return is_run(path) or is_sweep(path)


def _is_settled(run: Run, *, has_books: bool) -> bool:
    verdict = run.read_verdict()
    if verdict is None:
        return False
    return has_books or (verdict.time_s is not None and time.time() - verdict.time_s > _SETTLED_S)


def _changed(
    folder: Path, known: Mapping[str, BroughtFile], *, with_events: bool
) -> Iterator[wire.SentFile]:
    """Give the files that are not as the laptop has them."""
    for name in [*_SMALL, *_others(folder, with_events=with_events)]:
        path = folder / name
        try:
            with files.open_regular(path, most_bytes=most_bytes_of(name)) as file:
                status = os.fstat(file.fileno())
                before, begin = known.get(name), 0
                if before and (before.size_bytes, before.stamp) == (
                    status.st_size,
                    status.st_mtime_ns,
                ):
                    continue
                if before and is_event_file(path.name) and before.size_bytes < status.st_size:
                    digest = hashlib.sha256(file.read(before.size_bytes) or b"").hexdigest()
                    begin = before.size_bytes if digest == before.sha256 else 0
        except OSError:
            continue
        yield wire.SentFile(
            name=name, begin=begin, size_bytes=status.st_size, stamp=status.st_mtime_ns
        )


def _others(folder: Path, *, with_events: bool) -> list[str]:
    names = []
    with suppress(OSError):
        for attempt in sorted(files.list_names(folder / "attempts")):
            names += [f"attempts/{attempt}/{name}.json" for name in ("begin", "verdict")]
    with suppress(OSError):
        if with_events:
            names += [f"events/{name}" for name in files.list_names(folder / "events")]
    return [name for name in names if is_brought(name)]


def _content(path: Path, sent: wire.SentFile) -> Iterator[bytes]:
    left = sent.size_bytes - sent.begin
    with files.open_regular(path, most_bytes=most_bytes_of(sent.name)) as file:
        file.seek(sent.begin)
        while left:
            if not (chunk := file.read(min(left, _CHUNK_BYTES))):
                raise HpcdistError(f"{path} became shorter while it was sent", hint="ask again")
            left -= len(chunk)
            yield chunk


def is_brought(name: str) -> bool:
    """Return whether a file of this name is brought."""
    is_of_events = any(is_place(name, "events", kind) for kind in (EVENT_FILE, USAGE_FILE))
    return is_of_events or bool(_NAME.fullmatch(name))


def most_bytes_of(name: str) -> int:
    """Return the size up to which a file of this name is brought."""
    return MOST_FILE_BYTES if name.startswith("events/") else files.MOST_JSON_BYTES


# At the laptop.


class Where(NamedTuple):
    """The place of some runs: one connection reaches all of them."""

    host: Host
    place: wire.Place

    @classmethod
    def of(cls, run: Run, remote: Remote) -> Where:
        """Return where a record leads; UserError for a host that the user has never named."""
        host = parse_host(remote.host, origin=f"{remote_file(run.path)}: host")
        if not is_host_known(host.name):
            raise UserError(
                f"{remote_file(run.path)} leads to {host.name}, which was never named on this "
                "machine",
                hint=f"if you know it, look at the run with: --host {host.name}",
            )
        place = wire.Place(folder=remote.folder, project=remote.project, runs=remote.runs)
        return cls(Host(remote.host, remote.folder), place)


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
            if is_host_known(remote.host):
                open_runs.append(run)
            else:
                have_answered = False
                note(f"run {run.id} is said to be at {remote.host}, which was never named here")
    for where, theirs in by_place(open_runs).items():
        if where is None:
            continue
        try:
            with connected(where.host, note) as connection:
                wanted = [wire.WantedRun(id=run.id, known=_known(run.path)) for run in theirs]
                request = wire.Bring(place=where.place, runs=wanted, files=with_events)
                bring(connection, request, theirs[0].path.parent, note=note)
        except HpcdistError as error:
            number = "1 run is" if len(theirs) == 1 else f"{len(theirs)} runs are"
            note(f"{number} shown as last known here: {error.message}")
            have_answered = False
    return have_answered


def bring_all(where: Where, runs: Path, *, note: Note) -> list[Run]:
    """Bring what has changed of all runs of a project at a host; return them."""
    there = {run.id: _known(run.path) for run in all_runs(runs) if read_remote(run)}
    with connected(where.host, note) as connection:
        request = wire.Bring(place=where.place, runs=None, known=there)
        return bring(connection, request, runs, note=note)


def bring(connection: Connection, request: wire.Bring, runs: Path, *, note: Note) -> list[Run]:
    """Ask for runs, and write what comes into the folder of the runs here; return them."""
    connection.send(wire.message(request))
    answer = connection.reply()
    if not isinstance(answer, wire.Brought):
        raise wire.WireError(f"{connection.host.name} sent another answer than runs")
    for text in answer.notes:
        note(f"{connection.host.name}: {text}")
    brought = []
    _check(answer.runs, connection.host.name)
    content = wire.Unpacker(connection.data())
    for sent in track(answer.runs, "bringing runs"):
        where = Where(connection.host, request.place)
        if _write(sent, where, runs / sent.id, content) and not is_sweep(runs / sent.id):
            brought.append(Run(runs / sent.id))
    content.finish()
    return brought


def _check(runs: Sequence[wire.SentRun], host: str) -> None:
    """Raise WireError for what no host of ours sends, before anything of it is written."""
    left_bytes = _MOST_BYTES
    for sent in runs:
        if not is_run_name(sent.id) or "/" in sent.id:
            raise wire.WireError(f"{host} sent a run called {sent.id!r}")
        for file in sent.files:
            most_bytes = most_bytes_of(file.name)
            if not is_brought(file.name) or not 0 <= file.begin <= file.size_bytes <= most_bytes:
                raise wire.WireError(
                    f"{host} sent {file.name!r} of run {sent.id}, which was not asked for"
                )
            left_bytes -= max(file.size_bytes - file.begin, _BLOCK_BYTES)
        left_bytes -= _BLOCK_BYTES
        if len({file.name for file in sent.files}) < len(sent.files):
            raise wire.WireError(f"{host} sent a file of run {sent.id} twice")
    if left_bytes < 0:
        most = f"{len(runs)} runs have more than {show_bytes(_MOST_BYTES)}"
        raise wire.WireError(f"{host} sent too much: {most}")


def _known(folder: Path) -> dict[str, BroughtFile]:
    """Return what was brought of a run, and is as it was brought."""
    remote = read_remote(Run(folder))
    known = {}
    for name, file in (remote.brought if remote else {}).items():
        with suppress(OSError):
            if is_brought(name) and os.lstat(folder / name).st_size == file.size_bytes:
                known[name] = file
    return known


def _write(sent: wire.SentRun, where: Where, folder: Path, contents: wire.Unpacker) -> bool:
    """Write one run; False where a run of this machine has its name, of which nothing changes."""
    remote = read_remote(Run(folder))
    is_foreign = remote is None and os.path.lexists(folder)
    brought = dict(remote.brought) if remote else {}
    try:
        if not is_foreign:
            for place in (folder, folder / "events", folder / "attempts"):
                _make_folder(place)
            if remote is None:
                write_remote(folder, remote_of(where, sent))
        for file in sent.files:
            content = contents.pieces(file.size_bytes - file.begin)
            if is_foreign:
                for _ in content:
                    pass
            else:
                brought[file.name] = _write_file(folder / file.name, file, content)
        if not is_foreign:
            write_remote(folder, remote_of(where, sent, brought))
    except OSError as error:
        raise cannot_write(folder, error) from None
    return not is_foreign


def remote_of(
    where: Where, sent: wire.SentRun, brought: Mapping[str, BroughtFile] | None = None
) -> Remote:
    return Remote(
        host=where.host.name,
        folder=where.place.folder,
        project=where.place.project,
        runs=sent.runs or where.place.runs,
        condition=msgspec.to_builtins(sent.condition),
        accounting=msgspec.to_builtins(sent.accounting),
        is_whole=sent.is_settled and brought is not None and "spec.json" in brought,
        brought=dict(brought or {}),
    )


def _make_folder(path: Path) -> None:
    """Make a folder; RunDirectoryError where a link is there, such as an archive may hold."""
    path.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
    if path.is_symlink():
        raise RunDirectoryError(
            f"{path} is a link: nothing is downloaded to it",
            hint="remove it, and run the command again",
        )


def _write_file(path: Path, sent: wire.SentFile, content: Iterator[bytes]) -> BroughtFile:
    """Write a file aside and rename it, or add to one; return what is there then."""
    _make_folder(path.parent)
    if sent.begin:
        if os.lstat(path).st_size != sent.begin:
            raise RunDirectoryError(f"{path} changed while it was downloaded", hint="try again")
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
        target = path
    else:
        target = path.with_name(f".{path.name}.brought")
        target.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(target, flags, files.PRIVATE_FILE), "ab") as file:
        file.writelines(content)
    if target != path:
        os.replace(target, path)
    with open(path, "rb") as file:
        digest = (
            hashlib.file_digest(file, "sha256").hexdigest()
            if hasattr(hashlib, "file_digest")
            else hashlib.sha256(file.read()).hexdigest()
        )
    return BroughtFile(sent.size_bytes, digest, sent.stamp)
