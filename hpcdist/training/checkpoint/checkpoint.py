"""Saving and loading checkpoints: whole or not at all, and never by an attempt out of date."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError
from hpcdist.training.checkpoint import files as checkpoint_files

FORMAT = 1
LIGHTNING_KEY = "hpcdist"
"""Under it a checkpoint of Lightning's holds what Lightning does not know of."""

_SHORT_WRITE = "unexpected pos"  # torch's writer, where less was written than it gave


class StaleAttemptError(HpcdistError):
    """A newer attempt of the run has begun: this one must not write checkpoints any more."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """The position of a training."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epochs done."""
    samples: int = 0
    """Samples of the epoch in progress that are used, over all ranks."""


def save(path: Path, state: dict[str, Any], *, is_current: Callable[[], bool]) -> None:
    """Write a checkpoint.

    It is written aside, brought to the disk, and renamed: whoever is killed at whatever moment
    leaves the checkpoints that were there. Raises StaleAttemptError, and leaves nothing, where
    `is_current` says no; HpcdistError where the disk is full.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with telling_of_no_room(path):
            write(aside, state)
        require_current(path, is_current)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def telling_of_no_room(path: Path) -> Iterator[None]:
    """Raise HpcdistError in place of what torch makes of a disk, or a quota, that is full."""
    try:
        yield
    except BaseException as error:  # torch's CheckpointException is no Exception
        if not _is_for_want_of_room(error):
            raise
        raise HpcdistError(
            f"no room is left for the checkpoint {path}: the disk or your quota there is full",
            hint="free some, have fewer kept or saved (checkpoint.keep, checkpoint.every_epochs), "
            "or keep runs elsewhere (HPCDIST_RUNS)",
        ) from error


def _is_for_want_of_room(error: BaseException | None) -> bool:
    """Return whether it, or its cause, says so; from one rank to another only text goes."""
    return files.find_full(error) is not None or any(
        type(each).__name__ == "CheckpointException" and _SHORT_WRITE in str(each)
        for each in files.causes(error)
    )


def write(path: Path, state: dict[str, Any]) -> None:
    """Write a new file, sealed with its digest, and bring it to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.PRIVATE_FILE)
    with open(descriptor, "wb") as file:
        sealed = checkpoint_files.SealedFile(file)
        torch.save(state, cast("IO[bytes]", sealed))
        sealed.seal()
        file.flush()
        os.fsync(file.fileno())


def load(path: Path, *, by_lightning: bool = False) -> dict[str, Any]:
    """Read a checkpoint into CPU memory; only plain values and tensors are unpickled.

    Of one in parts, that is all but the weights and the optimizer's state: see `sharded.read`.
    HpcdistError where it is none of ours, or was not saved by the same trainer.
    """
    try:
        state = _read(path)
    except Exception as error:  # noqa: BLE001 - see `_read`
        raise foreign(path, _first_line(error)) from None
    keys = state if isinstance(state, dict) else {}
    if by_lightning and LIGHTNING_KEY not in keys:
        raise foreign(path, "no job with workload lightning saved it")
    if not by_lightning and "pytorch-lightning_version" in keys:
        raise foreign(path, "Lightning saved it, and the job lightning goes on from it")
    if not by_lightning and keys.get("format") != FORMAT:
        raise foreign(path, f"it does not say that its format is {FORMAT}")
    return cast("dict[str, Any]", state)


def _read(path: Path) -> Any:
    """Return what a checkpoint holds; torch raises whatever a damaged or foreign file makes it."""
    file = path / checkpoint_files.TRAINING if checkpoint_files.is_in_parts(path) else path
    return torch.load(file, map_location="cpu", weights_only=True)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def newest_intact(candidates: list[Path], damaged: Callable[[Path], None]) -> Path | None:
    """Return the first candidate that is whole; `damaged` is called for each one before it."""
    for path in candidates:
        if checkpoint_files.is_intact(path):
            return path
        damaged(path)
    return None


def require_current(path: Path, is_current: Callable[[], bool]) -> None:
    """Raise StaleAttemptError where `is_current` says no."""
    if not is_current():
        raise StaleAttemptError(
            f"a newer attempt of this run has begun: {path.name} is not saved",
            hint="nothing is lost: the newer attempt saves its own",
        )


def foreign(path: Path, reason: str) -> HpcdistError:
    """Return the error for what is no checkpoint of ours."""
    return HpcdistError(
        f"{path} is not a checkpoint that this version of hpcdist can read: {reason}",
        hint="name one that hpcdist saved with checkpoint.resume",
    )


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
