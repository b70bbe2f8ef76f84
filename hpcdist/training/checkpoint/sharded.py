"""Checkpoints in parts: a folder into which every rank writes what it holds.

The tensors are in the format of torch.distributed.checkpoint (DCP), which can be read by any number
of ranks. Beside them, `training.pt` holds what else a training goes on from, and `complete.json`,
written last, lists every file with its size and checksum. The folder gets its name when all is
there.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import secrets
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as read_parts
from torch.distributed.checkpoint.state_dict_saver import save as write_parts

from hpcdist.base import files
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint.files import COMPLETE, METADATA, TRAINING, describe
from hpcdist.training.checkpoint.state import empty_like, unflatten

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


def save(
    path: Path,
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    *,
    is_current: Callable[[], bool],
) -> None:
    """Write a checkpoint with all ranks, of this rank's `tensors` and rank 0's `state`. Raises as
    `checkpoint.save` does, and leaves the checkpoints that were there."""
    rank = dist.get_rank()
    named = [path.with_name(f".{path.name}.{secrets.token_hex(4)}").name]
    if rank == 0:
        (path.parent / named[0]).mkdir(mode=files.PRIVATE_FOLDER)
    dist.broadcast_object_list(named, src=0)
    aside = path.parent / named[0]
    try:
        with checkpoint.telling_of_no_room(path):
            write_parts(tensors, storage_writer=FileSystemWriter(aside, sync_files=True))
        # Each rank looks at what it wrote; the list of tensors is rank 0's.
        own = [*aside.glob(f"__{rank}_*"), *([aside / METADATA] if rank == 0 else [])]
        described: list[Any] = [None] * dist.get_world_size()
        dist.gather_object(
            {part.name: describe(part) for part in own}, described if rank == 0 else None, dst=0
        )
        if rank == 0:
            parts = {name: entry for entries in described for name, entry in entries.items()}
            _complete(path, aside, state, parts, is_current)
    except BaseException:
        if rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
        raise


def read(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the tensors as `take_over` wants them, cut up as the model's. Every rank reads what it
    needs, however many wrote it. HpcdistError where the checkpoint is none of ours."""
    reader = _Reader(path)
    try:
        stored = {
            name: (entry.size, entry.properties.dtype)
            for name, entry in reader.read_metadata().state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        flat = empty_like(model, optimizer, stored)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it reads without other ranks
            read_parts(flat, storage_reader=reader, no_dist=True)
    except Exception as error:  # noqa: BLE001 - torch raises whatever a foreign file makes it
        raise checkpoint.foreign(path, str(error).partition("\n")[0]) from None
    return unflatten(model, optimizer, flat)


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


def _complete(
    path: Path,
    aside: Path,
    state: dict[str, Any],
    parts: dict[str, list[int]],
    is_current: Callable[[], bool],
) -> None:
    """Add the state and the list of all files, and give the folder its name."""
    checkpoint.write(aside / TRAINING, state)
    parts[TRAINING] = describe(aside / TRAINING)
    marker = json.dumps({"world_size": dist.get_world_size(), "parts": parts}).encode()
    with (aside / COMPLETE).open("wb") as file:
        file.write(marker)
        file.flush()
        os.fsync(file.fileno())
    checkpoint.sync_folder(aside)
    checkpoint.require_current(path, is_current)
    if path.exists():  # of an attempt before: it was found damaged, or it is this very step
        path.rename(aside.with_name(f"{aside.name}.before"))
    aside.rename(path)
    checkpoint.sync_folder(path.parent)
    shutil.rmtree(aside.with_name(f"{aside.name}.before"), ignore_errors=True)
