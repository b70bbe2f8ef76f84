"""Saving and loading checkpoints: whole or not at all, and never by an attempt out of date.

A checkpoint is a folder. Its tensors are in the format of torch.distributed.checkpoint (DCP), which
any number of ranks with any strategy can read. Beside them `training.pt` holds what else a training
goes on from, and `complete.json`, written last, lists every file with its size and checksum. The
folder gets its name when all is there. Nothing that is read can run code.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load as read_parts
from torch.distributed.checkpoint.state_dict_saver import save as write_parts

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError
from hpcdist.rank.context import RankContext
from hpcdist.training.checkpoint import files as checkpoint_files
from hpcdist.training.checkpoint.files import COMPLETE, METADATA, STATE, describe

_FORMAT = 2
_MODEL = "model."
_OPTIMIZER = "optimizer."
_SHORT_WRITE = "unexpected pos"  # torch's writer, where less was written than it gave


class StaleAttemptError(HpcdistError):
    """A newer attempt of the run has begun: this one must not write checkpoints any more."""


# Saving.


def save(
    path: Path,
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    *,
    is_current: Callable[[], bool],
    together: bool,
) -> None:
    """Write a checkpoint of `tensors` and `state`: all ranks `together`, each with its parts of the
    tensors and rank 0 with the state, or rank 0 alone.

    It is written aside, brought to the disk, and renamed: whoever is killed at whatever moment
    leaves the checkpoints that were there. Raises StaleAttemptError, and leaves nothing, where
    `is_current` says no; HpcdistError where the disk is full.
    """
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)

    def make_folder() -> str:
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        aside.mkdir(mode=files.PRIVATE_FOLDER)
        return aside.name

    aside = path.with_name(from_rank_zero(make_folder) if together else make_folder())
    try:
        with report_full_disk(path):
            writer = FileSystemWriter(aside, sync_files=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that it writes without other ranks
                write_parts(tensors, storage_writer=writer, no_dist=not together)
            # Each rank looks at what it wrote; the list of tensors is rank 0's.
            own = [*aside.glob(f"__{rank}_*"), *([aside / METADATA] if rank == 0 else [])]
            described: list[Any] = [{part.name: describe(part) for part in own}]
            if together:
                described *= world_size
                dist.gather_object(described[0], described if rank == 0 else None, dst=0)
            if rank == 0:
                listed = {name: entry for entries in described for name, entry in entries.items()}
                _write(aside / STATE, lambda file: torch.save({"format": _FORMAT, **state}, file))
                listed[STATE] = describe(aside / STATE)
                marker = json.dumps({"world_size": world_size, "files": listed}).encode()
                _write(aside / COMPLETE, lambda file: file.write(marker))
        if rank == 0:
            _give_name(aside, path, is_current)
    except BaseException:
        if rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
        raise


def _write(path: Path, write: Callable[[Any], Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.PRIVATE_FILE)
    with open(descriptor, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def _give_name(aside: Path, path: Path, is_current: Callable[[], bool]) -> None:
    _sync_folder(aside)
    if not is_current():
        raise StaleAttemptError(
            f"a newer attempt of this run has begun: {path.name} is not saved",
            hint="nothing is lost: the newer attempt saves its own",
        )
    before = aside.with_name(f"{aside.name}.before")
    if path.exists():  # of an attempt before: it was found damaged, or it is this very step
        path.rename(before)
    aside.rename(path)
    _sync_folder(path.parent)
    shutil.rmtree(before, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def report_full_disk(path: Path) -> Iterator[None]:
    """Raise HpcdistError in place of what torch makes of a disk, or a quota, that is full."""
    try:
        yield
    except (Exception, CheckpointException) as error:
        # From one rank to another only text goes.
        is_full = files.find_full(error) is not None or any(
            isinstance(each, CheckpointException) and _SHORT_WRITE in str(each)
            for each in files.causes(error)
        )
        if not is_full:
            raise
        raise HpcdistError(
            f"no room is left for the checkpoint {path}: the disk or your quota there is full",
            hint="free some, have fewer kept or saved (checkpoint.keep, checkpoint.every_epochs), "
            "or keep runs elsewhere (HPCDIST_RUNS)",
        ) from error


def flatten(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return all tensors on this rank: `model.<name>`, `optimizer.<parameter's name>.<kind>`. They
    are the model's and the optimizer's own: what is written into them is taken over."""
    flat = {f"{_MODEL}{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for kind, value in optimizer.state.get(parameter, {}).items():
            flat[f"{_OPTIMIZER}{name}.{kind}"] = value
    return {name: value for name, value in flat.items() if isinstance(value, Tensor)}


# Loading.


def from_rank_zero(make: Callable[[], Any]) -> Any:
    """Return in all ranks what `make` returns in rank 0."""
    if not dist.is_initialized():
        return make()
    made = [make() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made, src=0)
    return made[0]


def load_state(path: Path) -> dict[str, Any]:
    """Return all but the tensors of a checkpoint, which rank 0 reads for all; only plain values and
    tensors are unpickled. HpcdistError where it is none of ours."""

    def read() -> dict[str, Any]:
        if path.suffix == checkpoint_files.LIGHTNING:
            raise _foreign(path, "the job lightning saved it, and only that goes on from it")
        with _refusing(path):
            state = torch.load(path / STATE, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise _foreign(path, f"it does not say that its format is {_FORMAT}")
        return state

    state: dict[str, Any] = from_rank_zero(read)
    return state


def load_tensors(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, apart: bool
) -> None:
    """Go on with the weights and the optimizer's state of a checkpoint; its settings, such as the
    weight decay, stay the job's. `apart`: each rank reads what it holds; else rank 0 reads for all,
    and so nodes need no file system in common. HpcdistError where the checkpoint is none of ours.
    """
    _make_state(optimizer)
    flat = flatten(model, optimizer)
    reader = _Reader(path)

    def names() -> list[str]:
        with _refusing(path):
            return sorted(reader.read_metadata().state_dict_metadata)

    stored = names() if apart else from_rank_zero(names)
    if lacking := [name for name in flat if name.startswith(_MODEL) and name not in stored]:
        raise _foreign(path, f"it has no {lacking[0]}")
    flat = {name: flat[name] for name in sorted(flat.keys() & {*stored})}  # in all ranks alike
    if apart or not dist.is_initialized() or dist.get_rank() == 0:
        with _refusing(path), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it reads without other ranks
            read_parts(flat, storage_reader=reader, no_dist=True)
    trained = {name.rpartition(".")[0] for name in flat if name.startswith(_OPTIMIZER)}
    for name, parameter in model.named_parameters():  # one that was never trained has no state
        if f"{_OPTIMIZER}{name}" not in trained:
            optimizer.state.pop(parameter, None)
    if dist.is_initialized() and not apart:
        for value in flat.values():
            given = value.contiguous()
            dist.broadcast(given, src=0)
            value.copy_(given)


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    """Have the optimizer make the tensors that it keeps, by a step that changes nothing."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Raise HpcdistError in place of whatever torch raises at a damaged or foreign checkpoint."""
    try:
        yield
    except (Exception, CheckpointException) as error:  # noqa: BLE001
        lines = str(error).strip().splitlines() or [type(error).__name__]
        # Of what failed in reading, torch gives a whole traceback.
        why = lines[-1] if isinstance(error, CheckpointException) else lines[0]
        raise _foreign(path, why) from None


def _foreign(path: Path, reason: str) -> HpcdistError:
    return HpcdistError(
        f"{path} is not a checkpoint that this version of hpcdist can read: {reason}",
        hint="name one that hpcdist saved with checkpoint.resume",
    )


_MOST_METADATA_BYTES = 250_000_000
"""Size of the list of tensors; that of 1,500 tensors on 64 ranks has 13 MB."""
_KNOWN_MODULE = "torch.distributed.checkpoint.metadata"
_PATHS = ("pathlib", "pathlib._local")
_KNOWN = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
}
_UNSAFE = {"BytesStorageMetadata"}  # has DCP unpickle what the checkpoint holds


class _Reader(FileSystemReader):
    """Reads a checkpoint whose list of tensors is a pickle, which could hold any code."""

    def read_metadata(self, *_arguments: Any, **_options: Any) -> Metadata:
        """Return the list of tensors; only the classes of such lists are unpickled."""
        folder = Path(self.path)
        content = files.read_bytes(folder / METADATA, most_bytes=_MOST_METADATA_BYTES)
        value = _Unpickler(io.BytesIO(content)).load()
        if not isinstance(value, Metadata):
            raise pickle.UnpicklingError(f"{METADATA} holds a {type(value).__name__}")
        parts = {part.name for part in folder.glob("*.distcp") if part.is_file()}
        for place in (value.storage_data or {}).values():
            if place.relative_path not in parts or place.transform_descriptors:
                raise pickle.UnpicklingError(f"{METADATA} names {place.relative_path!r}")
        return value


class _Unpickler(pickle._Unpickler):  # noqa: SLF001 - see below
    """Unpickles lists of tensors, in Python: that in C takes 2 GB for a pickle of 9 bytes, which
    says that it has so many values."""

    dispatch = {  # noqa: RUF012 - as its parent has it
        code: load
        for code, load in pickle._Unpickler.dispatch.items()  # noqa: SLF001
        if code != pickle.BYTEARRAY8[0]  # of any size, before one byte of it is read
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that lists of tensors are made of."""
        if module == "torch" and isinstance(value := getattr(torch, name, None), torch.dtype):
            return value
        if (module, name) in _KNOWN:
            return super().find_class(module, name)
        if module in _PATHS:  # nobody reads it, and one made of others can grow without an end
            return lambda *_parts: Path()
        if module == _KNOWN_MODULE and "." not in name and name not in _UNSAFE:
            value = super().find_class(module, name)
            if isinstance(value, type):  # not what the module has imported or can do
                return value
        raise pickle.UnpicklingError(f"{METADATA} asks for {module}.{name}")


# The checkpoint to start from.


def find_start(context: RankContext, resume: str | None) -> Path | None:
    """Return the checkpoint that this attempt goes on from, the same in all ranks, if there is one.
    Rank 0 alone looks for it: on a shared file system nodes may see different things, and where
    there is none, node 0 alone has it."""
    own = context.run.checkpoints_folder

    def find() -> tuple[str, bool] | None:
        path = _find(context, resume)
        is_own = path is not None and path.parent == own
        return None if path is None else (path.name if is_own else str(path), is_own)

    if (found := from_rank_zero(find)) is None:
        return None
    name, is_own = found
    return own / name if is_own else Path(name)


def _find(context: RankContext, resume: str | None) -> Path | None:
    own = context.run.checkpoints_folder
    if context.is_current():
        checkpoint_files.remove_unfinished(own)

    def candidates() -> Iterator[Path]:
        if context.attempt > 0:
            yield from checkpoint_files.list_checkpoints(own)
        if resume is not None:
            yield from checkpoint_files.resume_candidates(resume)

    for path in candidates():
        if checkpoint_files.is_intact(path):
            return path
        context.note(f"{path.name} is damaged and is passed over for the one before")
        if path.parent == own and context.is_current():  # so that it never counts as one to keep
            path.rename(path.with_name(f"{path.name}.damaged"))
    if resume is None:
        return None
    raise HpcdistError(
        f"checkpoint.resume is {resume!r}, where no checkpoint is whole: {path.name} is damaged, "
        "or not hpcdist's",
        hint="start without it: leave checkpoint.resume out",
    )
