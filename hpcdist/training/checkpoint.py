"""Saving and loading checkpoints: whole or not at all, and never by an attempt out of date."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from hpcdist import files
from hpcdist.errors import HpcdistError
from hpcdist.training import checkpoint_files

FORMAT = 1


class StaleAttemptError(HpcdistError):
    """A newer attempt of the run has begun: this one must not write checkpoints any more."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a training is."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epochs done."""
    samples: int = 0
    """Samples of the epoch in progress that are used, over all ranks."""


def save(path: Path, state: dict[str, Any], *, is_current: Callable[[], bool]) -> int:
    """Write a checkpoint; returns its size in bytes.

    It is written aside, brought to the disk, and renamed: whoever is killed at whatever moment
    leaves the checkpoints that were there. Raises StaleAttemptError, and leaves nothing, where
    `is_current` says no; OSError where the disk is full.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.PRIVATE_FILE)
        with open(descriptor, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        num_bytes = aside.stat().st_size
        _require_current(path, is_current)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return num_bytes


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint into CPU memory; only plain values and tensors are unpickled.

    HpcdistError where it is none of ours.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - torch raises whatever a foreign file makes it
        raise _foreign(path, str(error).partition("\n")[0]) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise _foreign(path, f"it does not say that its format is {FORMAT}")
    return cast("dict[str, Any]", state)


def newest_intact(candidates: list[Path], damaged: Callable[[Path], None]) -> Path | None:
    """The first candidate that is whole; `damaged` is called for each one that is passed over."""
    for path in candidates:
        if checkpoint_files.is_intact(path):
            return path
        damaged(path)
    return None


def _require_current(path: Path, is_current: Callable[[], bool]) -> None:
    if not is_current():
        raise StaleAttemptError(
            f"a newer attempt of this run has begun: {path.name} is not saved",
            hint="nothing is lost: the newer attempt saves its own",
        )


def _foreign(path: Path, reason: str) -> HpcdistError:
    return HpcdistError(
        f"{path} is not a checkpoint that this version of hpcdist can read: {reason}",
        hint="name one that hpcdist saved with checkpoint.resume",
    )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
