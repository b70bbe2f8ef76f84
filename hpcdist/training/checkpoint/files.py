"""The checkpoints of a folder, by name: what is there, which is the newest. Imports no torch.

step-00000120.pt               after 120 optimizer steps, whole
step-00000120.ckpt             the same, in Lightning's format
step-00000120.dcp/             the same in parts, a file of each rank (see `sharded`)
.step-00000120.pt.1f09ac2e     being written; what a killed rank left is removed by the next save
step-00000120.pt.damaged       was found damaged, and is never looked at again
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
import zlib
from pathlib import Path

from hpcdist.base.errors import JobError

TRAINING = "training.pt"
"""In a checkpoint in parts: what is no tensor of the model or the optimizer."""
COMPLETE = "complete.json"
"""In a checkpoint in parts: every file with its size and checksum."""

_NAME = re.compile(r"step-(\d{8,})\.(?:pt|ckpt|dcp)")
_ASIDE = ".step-*.*.*"
_DAMAGED = ".damaged"
WHOLE = ".pt"
IN_PARTS = ".dcp"
_CHUNK_BYTES = 1 << 22


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


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first."""
    numbered = [
        (int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(numbered, reverse=True)]


def is_intact(path: Path) -> bool:
    """Return whether every byte of a checkpoint is as it was written: torch, which looks at no
    checksums, would not notice a flipped bit."""
    try:
        if is_in_parts(path):
            parts = json.loads((path / COMPLETE).read_bytes())["parts"]
            return all(describe(path / name) == expected for name, expected in parts.items())
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError):
        return False
    except (ValueError, KeyError, TypeError, AttributeError):  # of a list of parts
        return False


def num_bytes(path: Path) -> int:
    return sum(part.stat().st_size for part in (path.iterdir() if path.is_dir() else [path]))


def describe(part: Path) -> list[int]:
    """Return the size of a file and its CRC-32, as zip files have it."""
    crc = 0
    with part.open("rb") as file:
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
    if path.is_dir():
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
