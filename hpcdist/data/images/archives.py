"""Unpacking a data set's .tgz, of which nothing is trusted: only plain files, nowhere but below a
folder, and not without bounds."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from hpcdist.base.errors import JobError

_MOST_BYTES = 8 * 10**9
_MOST_FILES = 1_000_000
_GZIP = b"\x1f\x8b"
_PIECE_BYTES = 1 << 20


def is_archive(path: Path) -> bool:
    """Whether a file is a tar archive, packed or not."""
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError, zlib.error):
        return False


def unpack(archive: Path, folder: Path) -> None:
    """Write the plain files of an archive below a folder; links and devices are left out.

    JobError where it is damaged, wants to write elsewhere, or is larger than any data set of its
    kind.
    """
    num_bytes = num_files = 0
    try:
        with _open(archive) as stream, tarfile.open(fileobj=stream, mode="r|*") as members:
            for member in members:
                if not member.isfile():
                    continue
                num_bytes += member.size
                num_files += 1
                if num_bytes > _MOST_BYTES or num_files > _MOST_FILES:
                    raise _refused(archive, "unpacks to more than 8 GB or a million files")
                _write(members, member, _place(archive, member, folder))
            _read_to_end(stream)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _refused(archive, f"cannot be unpacked: {error}") from None


def _open(archive: Path) -> BinaryIO:
    """A .tgz as what is in it: tarfile by itself takes one that was cut off for one that ends."""
    with archive.open("rb") as file:
        is_gzip = file.read(len(_GZIP)) == _GZIP
    return cast("BinaryIO", gzip.open(archive, "rb")) if is_gzip else archive.open("rb")


def _read_to_end(stream: BinaryIO) -> None:
    """EOFError where the file ends before what was packed does, or zlib's where it is damaged."""
    while stream.read(_PIECE_BYTES):
        pass


def _place(archive: Path, member: tarfile.TarInfo, folder: Path) -> Path:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise _refused(archive, f"has a file {member.name!r}, which is not below its folder")
    return folder.joinpath(*path.parts)


def _write(members: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = members.extractfile(member)
    assert content is not None  # as it is a plain file
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)


def _refused(archive: Path, why: str) -> JobError:
    return JobError(
        f"{archive} {why}", hint="download it again, or unpack it yourself and name the folder"
    )
