"""What a training saves, and when it has: rank 0 writes, with what the other ranks give it."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hpcdist.rank import RankContext
from hpcdist.training import checkpoint, checkpoint_files, rng
from hpcdist.training.checkpoint import Position


class Saver:
    """Saves checkpoints of one training into its run directory."""

    def __init__(
        self,
        context: RankContext,
        *,
        keep: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        identity: dict[str, Any],
    ) -> None:
        """Keep the newest `keep` checkpoints on disk."""
        self.saved: Position | None = None
        """The position that was saved last."""
        self._context = context
        self._keep = keep
        self._model = model
        self._optimizer = optimizer
        self._identity = identity

    def save(self, position: Position) -> None:
        """Save a checkpoint; called by all ranks, and written by rank 0."""
        begin_s = time.perf_counter()
        rng_states = self._gather(rng.get_rng_state(torch.device(self._context.device)))
        self.saved = position
        if self._context.rank != 0:
            return
        folder = self._context.run.checkpoints_folder
        path = folder / checkpoint_files.file_name(position.step)
        num_bytes = checkpoint.save(
            path, self._state(position, rng_states), is_current=self._context.is_current
        )
        checkpoint_files.remove_old(folder, self._keep)
        self._context.events.write(
            "checkpoint",
            checkpoint=path.name,
            step=position.step,
            epoch=position.epoch,
            bytes=num_bytes,
            save_time_s=time.perf_counter() - begin_s,
        )

    def _state(self, position: Position, rng_states: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "format": checkpoint.FORMAT,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "position": asdict(position),
            "rng": rng_states,
            "identity": self._identity,
        }

    def _gather(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """The values of all ranks, in rank 0; nothing in the others."""
        if self._context.world_size == 1:
            return [state]
        gathered: list[Any] = [None] * self._context.world_size
        dist.gather_object(state, gathered if self._context.rank == 0 else None, dst=0)
        return gathered
