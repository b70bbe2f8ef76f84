"""The checkpoint files of a folder, by name: what is there, which is the newest. Imports no torch.

step-00000120.pt               after 120 optimizer steps, whole
step-00000120.ckpt             the same, in Lightning's format
.step-00000120.pt.1f09ac2e     being written; what a killed rank left is removed by the next save
step-00000120.pt.damaged       was found damaged, and is never looked at again
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from hpcdist.errors import JobError

_NAME = re.compile(r"step-(\d{8,})\.(?:pt|ckpt)")
_ASIDE = ".step-*.*.*"
_DAMAGED = ".damaged"


def file_name(step: int, suffix: str = ".pt") -> str:
    """Name of the checkpoint after so many steps; Lightning's end in .ckpt."""
    return f"step-{step:08d}{suffix}"


def step_of(path: Path) -> int:
    """Step of a checkpoint that `list_checkpoints` found."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    found = [
        (int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found, reverse=True)]


def is_intact(path: Path) -> bool:
    """Whether every byte of a checkpoint is as it was written.

    torch reads the zip file without looking at its checksums, so a flipped bit would go unnoticed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError):
        return False


def set_aside_damaged(path: Path) -> None:
    """Take a damaged checkpoint out of the way, so that it never counts as one that is kept."""
    path.rename(path.with_name(path.name + _DAMAGED))


def remove_old(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for path in list_checkpoints(folder)[keep:]:
        path.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what ranks that were killed while saving left behind."""
    for path in folder.glob(_ASIDE):
        path.unlink(missing_ok=True)


def resume_candidates(resume: str) -> list[Path]:
    """The checkpoints that checkpoint.resume can mean, newest first; JobError if there is none."""
    path = Path(resume).expanduser()
    if path.is_file():
        return [path]
    folders = [folder for folder in (path / "checkpoints", path) if folder.is_dir()]
    for folder in folders:
        if found := list_checkpoints(folder):
            return found
    wrong = "holds no checkpoint" if folders else "does not exist"
    raise JobError(
        f"checkpoint.resume is {resume!r}, which {wrong}",
        hint="name a checkpoint file, a folder of them, or a run directory",
    )
