"""The upload of a job to Azure: one archive with hpcdist, the run's files and the snapshot.

One archive, for Azure keeps single files as blobs, which have no permissions and no links, and
thousands of them take minutes.
"""

from __future__ import annotations

import gzip
import io
import os
import secrets
import tarfile
from collections.abc import Iterator
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.carried import carry
from hpcdist.runs.run import Run
from hpcdist.schedulers.azure.client import asking
from hpcdist.schedulers.azure.node import KEY_FILE
from hpcdist.schedulers.azure.request import ARCHIVE, CODE, LIB, RESUME, RUN, SNAPSHOT
from hpcdist.training.checkpoint import files as checkpoint_files

_KEY_BYTES = 32


def write_code(run: Run, folder: Path, snapshot: Path | None) -> int:
    """Write the archive into the folder `code` in `folder`; return its size in bytes.

    Links that lead out of the snapshot, to data and environments that git ignores, stay here: they
    would lead nowhere. So does what the user's .amlignore lists.
    """
    code = folder / CODE
    code.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    path = code / ARCHIVE
    with (
        open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file,
        gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        _add_tree(archive, LIB, carry())
        for own in (run.spec_file, run.function_file):
            if own.exists():
                _add_file(archive, f"{RUN}/{own.name}", own)
        _add(archive, f"{RUN}/{KEY_FILE}", secrets.token_hex(_KEY_BYTES).encode(), 0o600)
        if (resume := (run.read_outline().checkpoint.resume)) is not None:
            _add_checkpoint(archive, resume)
        if snapshot is not None:
            _add_tree(archive, SNAPSHOT, snapshot, left_out=_ignored(snapshot))
    return path.stat().st_size


def _add_checkpoint(archive: tarfile.TarFile, resume: str) -> None:
    """Add the newest whole checkpoint that checkpoint.resume can mean."""
    candidates = checkpoint_files.resume_candidates(resume)
    path = next(filter(checkpoint_files.is_intact, candidates), candidates[0])
    if path.is_dir():
        _add_tree(archive, f"{RESUME}/{path.name}", path)
    else:
        _add_file(archive, f"{RESUME}/{path.name}", path)


def _add_tree(
    archive: tarfile.TarFile, name: str, folder: Path, *, left_out: frozenset[str] = frozenset()
) -> None:
    for place in _places(folder):
        if place in left_out:
            continue
        path = folder / place
        if path.is_symlink():
            target = os.path.realpath(path)
            if os.path.commonpath([target, os.path.realpath(folder)]) == os.path.realpath(folder):
                entry = _entry(f"{name}/{place}", 0o777)
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                archive.addfile(entry)
        else:
            _add_file(archive, f"{name}/{place}", path)


def _places(folder: Path) -> Iterator[str]:
    """Yield the files and links in a folder, sorted, without byte code of this Python."""
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        folders[:] = sorted({*folders} - {*links, "__pycache__"})
        for name in sorted([*names, *links]):
            yield os.path.relpath(os.path.join(parent, name), folder)


def _add_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    content = files.read_bytes(path, most_bytes=float("inf"))
    _add(archive, name, content, 0o755 if os.access(path, os.X_OK) else 0o644)


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = _entry(name, mode)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _entry(name: str, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode = mode
    return entry


def _ignored(snapshot: Path) -> frozenset[str]:
    """Return the files of a snapshot that its .amlignore lists, as Azure's SDK reads it."""
    with asking("the files that .amlignore lists"):
        from azure.ai.ml._utils._asset_utils import AmlIgnoreFile
    ignore = AmlIgnoreFile(snapshot)
    if not ignore.exists():
        return frozenset()
    return frozenset(one for one in _places(snapshot) if ignore.is_file_excluded(snapshot / one))
