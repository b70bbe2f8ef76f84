"""Lightning's checkpoints in the run's folder: whole or not at all, verified, the newest kept."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytorch_lightning.plugins.io import CheckpointIO
from pytorch_lightning.strategies import ModelParallelStrategy

from hpcdist.rank.context import RankContext
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint.checkpoint import LIGHTNING_KEY, Position
from hpcdist.training.checkpoint.state import moments_like, weights_like
from hpcdist.training.progress import Progress
from hpcdist.training.strategies import unsynchronized

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
        return self._loaded or checkpoint.load(Path(path), by_lightning=True)

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


_save = checkpoint.save  # Lightning calls its own argument `checkpoint`


def go_on_from(state: dict[str, Any], progress: Progress) -> None:
    """Take over the position, and make Lightning's own counts of batches agree with it.

    They differ where the number of ranks or the batch size does. Then the epoch goes on at the
    last boundary between steps of the new size: a few samples are seen twice.
    """
    position = Position(**state[LIGHTNING_KEY]["position"])
    plan = progress.plan
    if 0 < position.samples < plan.num_samples:
        steps = position.samples // plan.samples_per_step
        position = replace(position, samples=steps * plan.samples_per_step)
        done = steps * plan.accumulate
        counts = state["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
        counts.update(ready=done, started=done, processed=done, completed=done - 1)
    progress.position = position


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
