"""The work tree on its way to a host, by content: only what no snapshot there holds is sent.

At the host it is a snapshot among the runs, as `hpcdist.runs.snapshot_store` keeps them; commands
and jobs run in it.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hpcdist.base import files
from hpcdist.remote import wire
from hpcdist.runs.folder import make_runs_folder
from hpcdist.runs.run import DEFAULT_RUNS, cannot_write
from hpcdist.runs.snapshot import (
    Entry,
    SnapshotPlan,
    content_id,
    in_threads,
    is_entry,
    open_file,
    parents_of,
)
from hpcdist.runs.snapshot_store import (
    SnapshotChangedError,
    age_s,
    list_stored,
    read_manifest,
    store,
    unfinished_folder,
)

_SEARCHED_SNAPSHOTS = 20
"""Number of snapshots in which contents are looked for: the last used, as they are alike."""
_MOST_LINKS = 1000
_CHUNK_BYTES = 1 << 18


def offer(plan: SnapshotPlan) -> wire.SentTree:
    """Return the work tree as it is told to a host."""
    ignored = [one.path for one in plan.entries if one.target == os.path.join(plan.root, one.path)]
    left_out = set(ignored)
    return wire.SentTree(
        source=f"{socket.gethostname()}:{plan.root}",
        within=os.path.relpath(plan.cwd, plan.root),
        commit=plan.commit,
        ignored=ignored,
        entries=[
            wire.SentEntry(one.path, one.size_bytes, one.sha256, one.executable, one.target)
            for one in plan.entries
            if one.path not in left_out
        ],
    )


def pack(plan: SnapshotPlan, wanted: Sequence[str]) -> Iterator[bytes]:
    """Give the frames of contents that a host lacks, packed as one stream.

    Raises SnapshotChangedError where a file is not as it was planned.
    """
    paths = {entry.sha256: (entry.path, entry.size_bytes) for entry in plan.entries if entry.sha256}

    def contents() -> Iterator[bytes]:
        for sha256 in wanted:
            name, left = paths[sha256]
            path = os.path.join(plan.root, name)
            with open_file(path) as file:
                while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
                    left -= len(chunk)
                    yield chunk
            if left:
                raise SnapshotChangedError(f"{path} changed while it was sent", hint="submit again")

    return wire.pack(contents())


@dataclass(frozen=True, kw_only=True)
class ReceivedTree(SnapshotPlan):
    """A work tree whose files lie where they were received, or in snapshots that are there."""

    sources: dict[str, str] = field(default_factory=dict)
    """Digest -> file."""

    def original(self, entry: Entry) -> str:
        return self.sources[entry.sha256]


def receive(
    tree: wire.SentTree,
    project: Path,
    runs: Path,
    ask: Callable[[list[str]], Iterable[bytes]],
) -> Path:
    """Store a work tree that is sent among the runs, and return the folder in it that the command
    is to work in. `ask` takes the digests that are lacking, and gives the packed bytes."""
    entries = [_checked(one) for one in tree.entries]
    links = _links_to_project(project, runs, entries, list(map(_checked_path, tree.ignored)))
    _check_disjoint([*entries, *links])
    whole = [*entries, *links]
    plan = ReceivedTree(
        id=content_id(whole),
        root=tree.source,
        cwd=tree.source,
        commit=tree.commit,
        entries=whole,
        notes=[],
    )
    make_runs_folder(runs)
    folder = plan.folder(runs)
    sizes = {one.sha256: one.size_bytes for one in entries if one.sha256}
    found = _find_contents(runs, folder, set(sizes))
    missing = [sha256 for sha256 in sizes if sha256 not in found]
    incoming = unfinished_folder(folder)
    try:
        incoming.mkdir(mode=files.PRIVATE_FOLDER, parents=True)
        _unpack(ask(missing), missing, sizes, incoming)
        found |= {sha256: str(incoming / sha256) for sha256 in missing}
        plan.sources.update(found)
        store(plan, runs)
    except OSError as error:
        raise cannot_write(runs, error) from None
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return folder / _checked_path(tree.within)


def _links_to_project(
    project: Path, runs: Path, entries: Sequence[Entry], ignored: Sequence[str]
) -> list[Entry]:
    """Return links to what lies in the project's folder, such as data, and is not sent."""
    sent = {parent for entry in entries for parent in (entry.path, *parents_of(entry.path))}
    taken = {*sent, os.path.relpath(runs, project), DEFAULT_RUNS}
    names = [name for name in sorted(files.list_names(project)) if not name.startswith(".")]
    nested = [path for path in ignored if path.partition("/")[0] in sent]
    return [
        Entry(path=path, target=str(project / path))
        for path in [*names, *nested][:_MOST_LINKS]
        if path not in taken and os.path.lexists(project / path)
        if not any(entry.target for entry in entries if entry.path in parents_of(path))
    ]


def _checked(one: wire.SentEntry) -> Entry:
    if bool(one.sha256) == bool(one.target) or one.size_bytes < 0:
        raise wire.WireError(f"{one.path!r} is neither a file nor a link")
    if one.sha256 and (len(one.sha256) != 64 or not one.sha256.isalnum()):
        raise wire.WireError(f"{one.path!r} has no digest")
    return Entry(
        path=_checked_path(one.path),
        size_bytes=one.size_bytes,
        sha256=one.sha256,
        executable=one.executable,
        target=one.target,
    )


def _checked_path(path: str) -> str:
    if path != "." and (
        not path
        or "\0" in path
        or os.path.normpath(path) != path
        or path.startswith(("/", "../"))
        or path == ".."
    ):
        raise wire.WireError(f"{path!r} is not a path within a work tree")
    return path


def _check_disjoint(entries: Sequence[Entry]) -> None:
    """Raise WireError where a path leads through a link, or is there twice."""
    paths = {entry.path for entry in entries}
    through = [entry.path for entry in entries if not paths.isdisjoint(parents_of(entry.path))]
    if through or len(paths) < len(entries):
        raise wire.WireError(f"{through or 'a path'} is in the work tree twice")


def _find_contents(runs: Path, folder: Path, wanted: set[str]) -> dict[str, str]:
    """Return files with these digests: of the snapshot itself, and of those that were used last."""
    stored = sorted(list_stored(runs), key=age_s)[:_SEARCHED_SNAPSHOTS]
    found: dict[str, str] = {}
    for place in sorted(stored, key=lambda one: one != folder):
        manifest = read_manifest(place)
        entries = [
            entry
            for entry in (manifest.entries if manifest else ())
            if entry.sha256 in wanted and entry.sha256 not in found
        ]
        are_whole = in_threads(partial(is_entry, str(place)), entries)
        found |= {
            entry.sha256: str(place / entry.path)
            for entry, is_whole in zip(entries, are_whole, strict=True)
            if is_whole
        }
    return found


def _unpack(
    packed: Iterable[bytes], wanted: Sequence[str], sizes: dict[str, int], folder: Path
) -> None:
    """Write the contents that come, each into a file called by its digest."""
    stream = wire.Unpacker(packed)
    for sha256 in wanted:
        with open(
            os.open(folder / sha256, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.PRIVATE_FILE), "wb"
        ) as file:
            file.writelines(stream.pieces(sizes[sha256]))
    stream.finish()
