"""Where a training starts: at its own newest checkpoint after a restart, or at a given one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hpcdist.base.errors import HpcdistError
from hpcdist.job.spec import TrainingJob
from hpcdist.rank.context import RankContext
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint import files as checkpoint_files
from hpcdist.training.checkpoint.checkpoint import Position


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A checkpoint in memory, and where it was."""

    path: Path
    state: dict[str, Any]
    """Without `model` and `optimizer` where the checkpoint is in parts."""

    def weights(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Those of the model, and the optimizer's state; of a checkpoint in parts, what is needed
        here is read now."""
        if not checkpoint_files.is_in_parts(self.path):
            return self.state
        from hpcdist.training.checkpoint import sharded

        return sharded.read(self.path, model, optimizer)

    @property
    def position(self) -> Position:
        """How far its training was."""
        return Position(**self.state["position"])


def load_start(context: RankContext, job: TrainingJob, *, has_group: bool) -> Loaded | None:
    """The checkpoint that this attempt goes on from, in memory; None: from the start."""
    path = find_start(context, job, has_group=has_group)
    return None if path is None else Loaded(path=path, state=checkpoint.load(path))


def find_start(context: RankContext, job: TrainingJob, *, has_group: bool) -> Path | None:
    """The file that this attempt goes on from, the same in all ranks; None: from the start.

    Rank 0 alone looks for it and verifies it: on a shared file system nodes may see different
    things.
    """
    found = [_find(context, job) if context.rank == 0 else None]
    if has_group:
        dist.broadcast_object_list(found, src=0)
    return None if found[0] is None else Path(found[0])


def _find(context: RankContext, job: TrainingJob) -> str | None:
    own = context.run.checkpoints_folder
    if context.is_current():
        checkpoint_files.remove_unfinished(own)
    if context.attempt > 0:
        path = checkpoint.newest_intact(
            checkpoint_files.list_checkpoints(own), lambda path: _pass_over(context, path, own=True)
        )
        if path is not None:
            return str(path)
    if job.checkpoint.resume is None:
        return None
    candidates = checkpoint_files.resume_candidates(job.checkpoint.resume)
    path = checkpoint.newest_intact(candidates, lambda path: _pass_over(context, path, own=False))
    if path is None:
        raise HpcdistError(
            f"checkpoint.resume is {job.checkpoint.resume!r}: every checkpoint there is damaged",
            hint="start without it: leave checkpoint.resume out",
        )
    return str(path)


def _pass_over(context: RankContext, path: Path, *, own: bool) -> None:
    message = f"{path.name} is damaged and is passed over for the one before"
    context.say(f"warning: {message}")
    context.events.write("note", message=message)
    if own and context.is_current():
        checkpoint_files.set_aside_damaged(path)
