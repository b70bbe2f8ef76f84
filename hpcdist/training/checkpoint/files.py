"""The checkpoints of a folder, by name: what is there, which is the newest. Imports no torch.

step-00000120.pt               after 120 optimizer steps, whole
step-00000120.ckpt             the same, in Lightning's format
step-00000120.dcp/             the same in parts, a file of each rank (see `sharded`)
.step-00000120.pt.1f09ac2e     being written; what a killed rank left is removed by the next save
step-00000120.pt.damaged       was found damaged, and is never looked at again
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from hpcdist.base.errors import JobError
from hpcdist.base.files import load_json, open_regular

TRAINING = "training.pt"
"""In a checkpoint in parts: what is no tensor of the model or the optimizer."""
METADATA = ".metadata"
"""In a checkpoint in parts: torch's list of the tensors."""
COMPLETE = "complete.json"
"""In a checkpoint in parts: every file with its size and checksum."""

SUFFIXES = (
    *(".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".pkl", ".npz", ".tar", ".h5"),
    *(".distcp", ".metadata"),
)
"""Endings of the names of checkpoints; the last two are of the parts of one."""
_NO_CHECKPOINTS = frozenset({"submitit", "launch", "results"})
"""Folders of a run that hold none."""

_NAME = re.compile(r"step-(\d{8,})\.(?:pt|ckpt|dcp)")
_ASIDE = ".step-*.*.*"
_DAMAGED = ".damaged"
WHOLE = ".pt"
IN_PARTS = ".dcp"
_CHUNK_BYTES = 1 << 22

_SEAL = re.compile(rb"hpcdist sha256 ([0-9a-f]{64})")
_SEAL_BYTES = 79
_LENGTH = _SEAL_BYTES.to_bytes(2, "little")
_NO_COMMENT = b"\0\0"
"""The last bytes of a zip archive as torch writes it: the length of its comment."""
"""The last record of such an archive."""
_WORTH_A_THREAD = 1 << 16


def file_name(step: int, suffix: str = WHOLE) -> str:
    return f"step-{step:08d}{suffix}"


def is_in_parts(path: Path) -> bool:
    """Return whether a checkpoint is a folder of files."""
    return path.suffix == IN_PARTS


def step_of(path: Path) -> int:
    """Return the step of a checkpoint that `list_checkpoints` found."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def parse_step(name: str) -> int | None:
    """Return the step of a checkpoint of this name; None where it is none's."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first."""
    numbered = [
        (int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(numbered, reverse=True)]


def list_saved(folder: Path) -> dict[Path, int]:
    """Return what a user's own program seems to have saved in a folder and below, by the endings of
    the names, each with the time at which it was written, in ns."""
    saved: dict[Path, int] = {}
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if name not in _NO_CHECKPOINTS]
        for name in names:
            if name.endswith(SUFFIXES) and name != "function.pkl":
                path = Path(place, name)
                with contextlib.suppress(OSError):  # replaced a moment ago
                    saved[path] = path.lstat().st_mtime_ns
    return saved


class SealedFile:
    """A file that torch saves to, to be sealed: its SHA-256 becomes the comment of the zip archive.

    The digest is taken of what is written, while it is written: nothing is read again.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._beside = ThreadPoolExecutor(1)

    def write(self, data: bytes | memoryview) -> int:
        if len(data) < _WORTH_A_THREAD:
            self._digest.update(data)
            return self._file.write(data)
        digested = self._beside.submit(self._digest.update, data)
        try:
            return self._file.write(data)
        finally:
            digested.result()  # the bytes are the caller's, and gone afterwards

    def flush(self) -> None:
        self._file.flush()

    def seal(self) -> None:
        """Add the digest to what was written, and let nothing be written any more."""
        self._beside.shutdown()
        self._file.seek(-len(_NO_COMMENT), os.SEEK_END)
        self._file.write(_LENGTH + f"hpcdist sha256 {self._digest.hexdigest()}".encode())


def is_intact(path: Path) -> bool:
    """Return whether every byte of a checkpoint is as hpcdist has written it: torch, which looks at
    no checksums, would not notice a flipped bit."""
    try:
        if is_in_parts(path):
            return _has_all_parts(path)
        with _open(path) as file:
            seal = _read_seal(file)
            return seal is not None and _digest_sealed(file) == seal
    except OSError:
        return False
    except (ValueError, KeyError, TypeError, AttributeError):  # of names, and of a list of parts
        return False


def _has_all_parts(folder: Path) -> bool:
    parts = load_json(folder / COMPLETE)["parts"]
    found = {TRAINING, METADATA, *(part.name for part in folder.glob("*.distcp"))}
    if not found <= parts.keys() or any("/" in name for name in parts):
        return False
    return all(describe(folder / name) == expected for name, expected in parts.items())


def _read_seal(file: BinaryIO) -> str | None:
    """Return the digest at the end of a file; None where it has none."""
    file.seek(-min(file.seek(0, os.SEEK_END), _SEAL_BYTES), os.SEEK_END)
    match = _SEAL.fullmatch(file.read())
    return match and match[1].decode()


def _digest_sealed(file: BinaryIO) -> str | None:
    """Return the digest of a sealed file as it was before; None where its comment is damaged."""
    digest = hashlib.sha256()
    left = file.seek(-_SEAL_BYTES - len(_LENGTH), os.SEEK_END)
    if file.read(len(_LENGTH)) != _LENGTH:
        return None
    file.seek(0)
    while left and (chunk := file.read(min(_CHUNK_BYTES, left))):
        digest.update(chunk)
        left -= len(chunk)
    digest.update(_NO_COMMENT)
    return digest.hexdigest()


def _open(path: Path) -> BinaryIO:
    return open_regular(path, most_bytes=math.inf)


def describe(part: Path) -> list[int]:
    """Return the size of a file and its CRC-32, as zip files have it."""
    crc = 0
    with _open(part) as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    return [part.stat().st_size, crc]


def set_aside_damaged(path: Path) -> None:
    """Take a damaged checkpoint out of the way, so that it never counts as one that is kept."""
    path.rename(path.with_name(path.name + _DAMAGED))


def remove_old(folder: Path, keep: int) -> None:
    for path in list_checkpoints(folder)[keep:]:
        _remove(path)


def remove_unfinished(folder: Path) -> None:
    """Remove what ranks that were killed while saving left behind."""
    for path in folder.glob(_ASIDE):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():  # what a link leads to is another run's
        (path / COMPLETE).unlink(missing_ok=True)  # what is left by a kill is no checkpoint
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def resume_candidates(resume: str) -> list[Path]:
    """Return what checkpoint.resume can mean, newest first; JobError if there is none."""
    path = Path(resume).expanduser()
    if path.is_file() or (path.is_dir() and is_in_parts(path)):
        return [path]
    folders = [folder for folder in (path / "checkpoints", path) if folder.is_dir()]
    for folder in folders:
        if checkpoints := list_checkpoints(folder):
            return checkpoints
    wrong = "holds no checkpoint" if folders else "does not exist"
    raise JobError(
        f"checkpoint.resume is {resume!r}, which {wrong}",
        hint="name a checkpoint, a folder of them, or a run directory",
    )
