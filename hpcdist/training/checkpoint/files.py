"""The checkpoints of a folder, by name: what is there, which is the newest. Imports no torch.

step-00000120.dcp/             after 120 optimizer steps: a folder of files (see `checkpoint`)
step-00000120.ckpt             the same of the job `lightning`, a file in Lightning's format
best                           a link to the best one, of trainings with train.keep_best
.step-00000120.dcp.1f09ac2e/   being written; what a killed rank left is removed by the next start
step-00000120.dcp.damaged      was found damaged, and is never looked at again
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import zipfile
import zlib
from pathlib import Path

from hpcdist.base.errors import JobError
from hpcdist.base.files import aside_of, load_json, open_regular

COMPLETE = "complete.json"
"""Written last: every other file of the checkpoint, with its size and checksum."""
STATE = "training.pt"
"""Everything that is no tensor of the model or the optimizer."""
METADATA = ".metadata"
"""torch's list of the tensors."""
BEST = "best"
LIGHTNING = ".ckpt"

SUFFIXES = (
    *(".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".pkl", ".npz", ".tar", ".h5"),
    *(".distcp", ".metadata"),
)
"""Endings of the names of checkpoints; the last two are of the parts of one."""
_NO_CHECKPOINTS = frozenset({"submitit", "launch", "results"})
"""Folders of a run that hold none."""

_NAME = re.compile(r"step-(\d{8,})\.(?:dcp|ckpt)")


def file_name(step: int, ending: str = ".dcp") -> str:
    """Return the name of a checkpoint; Lightning's end in `LIGHTNING`."""
    return f"step-{step:08d}{ending}"


def step_of(path: Path) -> int:
    """Return the step of a checkpoint that `list_checkpoints` found."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first."""
    found = (path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    return sorted(found, key=step_of, reverse=True)


def list_saved(folder: Path) -> dict[Path, int]:
    """Return what a user's own program seems to have saved in a folder and below, by the endings of
    the names, each with the time at which it was written, in ns."""
    saved: dict[Path, int] = {}
    for place, inner, names in os.walk(folder):
        # Of ours, those that are being written have other names.
        inner[:] = [name for name in inner if name not in _NO_CHECKPOINTS and name[:6] != ".step-"]
        for name in names:
            if name.endswith(SUFFIXES) and name != "function.pkl":
                path = Path(place, name)
                with contextlib.suppress(OSError):  # replaced a moment ago
                    saved[path] = path.lstat().st_mtime_ns
    return saved


def is_intact(path: Path) -> bool:
    """Return whether every byte of a checkpoint is as it was written: torch, which looks at no
    checksums, would not notice a flipped bit. Lightning's files have those of the zip format."""
    try:
        if path.suffix == LIGHTNING:
            with open_regular(path, most_bytes=math.inf) as file, zipfile.ZipFile(file) as archive:
                return archive.testzip() is None
        listed = load_json(path / COMPLETE)["files"]
        found = {STATE, METADATA, *(part.name for part in path.glob("*.distcp"))}
        if not found <= listed.keys() or any("/" in name for name in listed):
            return False
        return all(describe(path / name) == expected for name, expected in listed.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError):
        return False


def describe(part: Path) -> list[int]:
    """Return the size of a file and its CRC-32, as zip files have it."""
    crc = size = 0
    with open_regular(part, most_bytes=math.inf) as file:
        while chunk := file.read(1 << 22):
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
    return [size, crc]


def mark_best(path: Path) -> None:
    """Have the link `best` lead to this checkpoint."""
    aside = aside_of(path)
    aside.symlink_to(path.name)
    aside.replace(path.with_name(BEST))


def remove_old(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the newest, and the best."""
    best = folder / BEST
    name = os.readlink(best) if best.is_symlink() else None
    for path in list_checkpoints(folder)[keep:]:
        if path.name != name:
            _remove(path)


def remove_unfinished(folder: Path) -> None:
    """Remove what ranks that were killed while saving left behind."""
    for path in folder.glob(".step-*.*.*"):
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
    if path.name == BEST and path.is_symlink():
        path = path.resolve()
    if path.is_file() or (path.is_dir() and _NAME.fullmatch(path.name)):
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
