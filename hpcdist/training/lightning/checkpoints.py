"""Lightning's checkpoints in the run's folder: whole or not at all, verified, the newest kept."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from pytorch_lightning.plugins.io import CheckpointIO
from pytorch_lightning.strategies import ModelParallelStrategy

from hpcdist.base.errors import HpcdistError
from hpcdist.rank.context import RankContext
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint.checkpoint import Position
from hpcdist.training.checkpoint.state import moments_like, weights_like
from hpcdist.training.progress import Progress
from hpcdist.training.strategies import unsynchronized

KEY = "hpcdist"
"""Under it a checkpoint holds what Lightning does not know of: position, rng, identity."""
SUFFIX = ".ckpt"


class CheckpointFiles(CheckpointIO):
    """Writes and reads checkpoints for Lightning as the torch loop does for itself."""

    def __init__(self, context: RankContext, loaded: dict[str, Any] | None = None) -> None:
        """`loaded`: the checkpoint to go on from, read before: Lightning asks for it twice."""
        self._context = context
        self._loaded = loaded

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | Path,
        storage_options: Any | None = None,  # noqa: ARG002 - as Lightning calls it
    ) -> None:
        """Write aside, bring to the disk, rename; nothing by an attempt that is out of date."""
        _save(Path(path), checkpoint, is_current=self._context.is_current)

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the checkpoint that was read before, or the one of this path."""
        return load(Path(path)) if self._loaded is None else self._loaded

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


_save = checkpoint.save  # Lightning calls its own argument `checkpoint`


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint into CPU memory; HpcdistError where no Lightning job saved it."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - torch raises whatever a foreign file makes it
        raise _foreign(path, str(error).partition("\n")[0]) from None
    if not isinstance(state, dict) or KEY not in state:
        raise _foreign(path, "it says nothing of where its training was")
    return cast("dict[str, Any]", state)


def go_on_from(state: dict[str, Any], progress: Progress) -> None:
    """Take over the position, and make Lightning's own counts of batches agree with it.

    They differ where the number of ranks or the batch size does. Then the epoch goes on at the
    last boundary between steps of the new size: a few samples are seen twice.
    """
    position = Position(**state[KEY]["position"])
    plan = progress.plan
    if not 0 < position.samples < plan.num_samples:
        progress.position = position
        return
    steps = position.samples // plan.samples_per_step
    progress.position = Position(
        step=position.step, epoch=position.epoch, samples=steps * plan.samples_per_step
    )
    done = steps * plan.accumulate
    counts = state["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
    counts.update(ready=done, started=done, processed=done, completed=done - 1)


def _foreign(path: Path, reason: str) -> HpcdistError:
    return HpcdistError(
        f"{path} is not a checkpoint that a Lightning job of hpcdist saved: {reason}",
        hint="name one of a job with workload lightning with checkpoint.resume",
    )


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's FSDP2: the module cuts itself up over all ranks in its configure_model.

    Checkpoints are those of Lightning's ddp: rank 0 writes all, whole, with the run's CheckpointIO,
    so that either strategy, and any number of ranks, can go on from them.
    """

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Have Lightning restore the optimizer, as with ddp."""
        return True

    @contextmanager
    def block_backward_sync(self) -> Generator[None, None, None]:
        """Add up gradients on this rank while batches are accumulated."""
        assert self.lightning_module is not None
        with unsynchronized(self.lightning_module.net):
            yield

    def load_checkpoint(self, checkpoint_path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """Return what the run's CheckpointIO reads, in every rank."""
        return dict(self.checkpoint_io.load_checkpoint(checkpoint_path))

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:  # noqa: FBT001, FBT002 - Lightning's
        """Take this rank's part of the weights; called by all ranks."""
        module = self.lightning_module
        assert module is not None
        weights = weights_like(module, checkpoint["state_dict"])
        module.load_state_dict(weights, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take this rank's part of the optimizer's state; called by all ranks."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            moments = moments_like(optimizer, state["state"])
            optimizer.load_state_dict({**state, "state": moments})
