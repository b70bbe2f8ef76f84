"""Saving checkpoints: rank 0 writes, with what the other ranks give it, or each rank its part."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hpcdist.rank.context import RankContext
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint import files as checkpoint_files
from hpcdist.training.checkpoint.checkpoint import Position
from hpcdist.training.checkpoint.state import flatten, get_rng_state


class Saver:
    """Saves checkpoints of one training into its run directory."""

    def __init__(
        self,
        context: RankContext,
        *,
        keep: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        identity: dict[str, Any],
        in_parts: bool,
    ) -> None:
        """Keep the newest `keep` checkpoints on disk; `in_parts`: each rank holds one."""
        self._context = context
        self._keep = keep
        self._model = model
        self._optimizer = optimizer
        self._scaler = scaler
        self._identity = identity
        self._in_parts = in_parts

    def save(self, position: Position) -> None:
        """Save a checkpoint; called by all ranks."""
        begin_s = time.perf_counter()
        rng_states = gather(self._context, get_rng_state(torch.device(self._context.device)))
        folder = self._context.run.checkpoints_folder
        path = folder / checkpoint_files.file_name(
            position.step, checkpoint_files.IN_PARTS if self._in_parts else ".pt"
        )
        write = self._write_part if self._in_parts else self._write_whole
        num_bytes = write(path, self._training_state(position, rng_states))
        if self._context.rank != 0:
            return
        checkpoint_files.remove_old(folder, self._keep)
        note_saved(
            self._context,
            path,
            step=position.step,
            epoch=position.epoch,
            num_bytes=num_bytes,
            begin_s=begin_s,
        )

    def _write_whole(self, path: Path, state: dict[str, Any]) -> int:
        if self._context.rank != 0:
            return 0
        weights = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        return checkpoint.save(path, {**state, **weights}, is_current=self._context.is_current)

    def _write_part(self, path: Path, state: dict[str, Any]) -> int:
        from hpcdist.training.checkpoint import sharded

        tensors = flatten(self._model, self._optimizer)
        return sharded.save(path, tensors, state, is_current=self._context.is_current)

    def _training_state(
        self, position: Position, rng_states: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return all but the weights and the optimizer's state."""
        return {
            "format": checkpoint.FORMAT,
            "position": asdict(position),
            "rng": rng_states,
            "scaler": self._scaler.state_dict(),
            "identity": self._identity,
        }


def gather(context: RankContext, state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the values of all ranks, in rank 0; nothing in the others."""
    if context.world_size == 1:
        return [state]
    gathered: list[Any] = [None] * context.world_size
    dist.gather_object(state, gathered if context.rank == 0 else None, dst=0)
    return gathered


def note_saved(
    context: RankContext, path: Path, *, step: int, epoch: int, num_bytes: int, begin_s: float
) -> None:
    """Write the event of a checkpoint whose saving began at `begin_s` of time.perf_counter."""
    context.events.write(
        "checkpoint",
        checkpoint=path.name,
        step=step,
        epoch=epoch,
        bytes=num_bytes,
        save_time_s=time.perf_counter() - begin_s,
    )
