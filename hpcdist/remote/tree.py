"""The work tree on its way to a host, by content: only what its last copy there lacks is sent.

At the host it lies in the project's folder until the command has ended that was called with it;
runs that are submitted there have copies of their own (`hpcdist.runs.code`).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.errors import UserError
from hpcdist.remote import wire
from hpcdist.runs.code import digest_through, find_copy, put_file, read_contents
from hpcdist.runs.folder import make_runs_folder
from hpcdist.runs.run import DEFAULT_RUNS, cannot_write
from hpcdist.runs.snapshot import Entry, SnapshotPlan, in_threads, open_original, parents_of

_MOST_LINKS = 1000
_CHUNK_BYTES = 1 << 18


def offer(plan: SnapshotPlan) -> wire.SentTree:
    """Return the work tree as it is told to a host."""
    ignored = [one.path for one in plan.entries if one.target == os.path.join(plan.root, one.path)]
    sent = [one for one in plan.entries if one.target != os.path.join(plan.root, one.path)]

    def read(entry: Entry) -> wire.SentEntry:
        if entry.target:
            return wire.SentEntry(entry.path, 0, "", executable=False, target=entry.target)
        with open_original(os.path.join(plan.root, entry.path)) as file:
            sha256, is_executable = digest_through(file), entry.is_executable
            return wire.SentEntry(entry.path, file.tell(), sha256, is_executable, "")

    return wire.SentTree(
        source=f"{socket.gethostname()}:{plan.root}",
        within=os.path.relpath(plan.cwd, plan.root),
        ignored=ignored,
        entries=in_threads(read, sent),
    )


def pack(tree: wire.SentTree, root: str, wanted: Sequence[str]) -> Iterator[bytes]:
    """Give the frames of contents that a host lacks, packed as one stream.

    Raises UserError where a file is not as it was offered any more.
    """
    paths = {entry.sha256: (entry.path, entry.size_bytes) for entry in tree.entries}

    def contents() -> Iterator[bytes]:
        for sha256 in wanted:
            name, left = paths[sha256]
            path = os.path.join(root, name)
            with open_original(path) as file:
                while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
                    left -= len(chunk)
                    yield chunk
            if left:
                raise UserError(f"{path} changed while it was sent", hint="submit again")

    return wire.pack(contents())


@contextmanager
def received(
    tree: wire.SentTree,
    project: Path,
    runs: Path,
    ask: Callable[[list[str]], Iterable[bytes]],
) -> Iterator[Path]:
    """Give the folder for the command to work in, within a work tree that is sent: it is there
    until the command has ended. `ask` takes the digests that are lacking, and gives the packed
    bytes."""
    for entry in tree.entries:
        _check(entry)
    links = _links_to_project(project, runs, tree.entries, [*map(_checked_path, tree.ignored)])
    entries = [*tree.entries, *links]
    _check_disjoint(entries)
    make_runs_folder(runs)
    former = find_copy(runs, str(project))
    places: dict[str, str] = {}
    for place, content in ({} if former is None else read_contents(former)).items():
        places.setdefault(content, os.path.join(str(former), place))
    wanted = {one.sha256: one.size_bytes for one in entries if one.sha256}
    missing = [sha256 for sha256 in wanted if sha256 not in places]
    root = project / f".tree-{secrets.token_hex(4)}"
    try:
        root.mkdir(mode=files.PRIVATE_FOLDER)
        incoming = root / f".{secrets.token_hex(8)}"
        incoming.mkdir(mode=files.PRIVATE_FOLDER)
        places |= _unpack(ask(missing), missing, wanted, incoming)
        for entry in entries:
            path = root / entry.path
            path.parent.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
            if entry.target:
                path.symlink_to(entry.target)
            else:
                content = places[entry.sha256]
                put_file(content, str(path), content, is_executable=entry.executable)
        shutil.rmtree(incoming)
        yield root / _checked_path(tree.within)
    except OSError as error:
        raise cannot_write(runs, error) from None
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _links_to_project(
    project: Path, runs: Path, entries: Sequence[wire.SentEntry], ignored: Sequence[str]
) -> list[wire.SentEntry]:
    """Return links to what lies in the project's folder, such as data, and is not sent."""
    sent = {parent for entry in entries for parent in (entry.path, *parents_of(entry.path))}
    taken = {*sent, os.path.relpath(runs, project), DEFAULT_RUNS}
    names = [name for name in sorted(files.list_names(project)) if not name.startswith(".")]
    nested = [path for path in ignored if path.partition("/")[0] in sent]
    return [
        wire.SentEntry(path, 0, "", executable=False, target=str(project / path))
        for path in [*names, *nested][:_MOST_LINKS]
        if path not in taken and os.path.lexists(project / path)
        if not any(entry.target for entry in entries if entry.path in parents_of(path))
    ]


def _check(one: wire.SentEntry) -> None:
    if bool(one.sha256) == bool(one.target) or one.size_bytes < 0:
        raise wire.WireError(f"{one.path!r} is neither a file nor a link")
    if one.sha256 and (len(one.sha256) != 64 or not one.sha256.isalnum()):
        raise wire.WireError(f"{one.path!r} has no digest")
    _checked_path(one.path)


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


def _check_disjoint(entries: Sequence[wire.SentEntry]) -> None:
    """Raise WireError where a path leads through a link, or is there twice."""
    paths = {entry.path for entry in entries}
    through = [entry.path for entry in entries if not paths.isdisjoint(parents_of(entry.path))]
    if through or len(paths) < len(entries):
        raise wire.WireError(f"{through or 'a path'} is in the work tree twice")


def _unpack(
    packed: Iterable[bytes], wanted: Sequence[str], sizes: dict[str, int], folder: Path
) -> dict[str, str]:
    """Write the contents that come, each into a file called by its digest; return the files."""
    stream = wire.Unpacker(packed)
    for sha256 in wanted:
        digest = hashlib.sha256()
        with open(
            os.open(folder / sha256, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb"
        ) as file:
            for piece in stream.pieces(sizes[sha256]):
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != sha256:
            raise UserError("a file changed while it was sent", hint="submit again")
    stream.finish()
    return {sha256: str(folder / sha256) for sha256 in wanted}
