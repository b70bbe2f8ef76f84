"""Lightning's FSDP2 (ModelParallelStrategy), on GPUs and CPUs, with checkpoints in one file."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.strategies import ModelParallelStrategy
from torch import Tensor
from torch.optim import Optimizer

from hpcdist.training.checkpoint.state import moments_like, weights_like, whole
from hpcdist.training.strategies import unsynchronized


class ShardedStrategy(ModelParallelStrategy):
    """Parameters, gradients and optimizer state cut up over all ranks; the module does so in its
    configure_model.

    Checkpoints are those of Lightning's ddp: rank 0 writes all, whole, with the run's CheckpointIO,
    so that either strategy, and any number of ranks, can go on from them.
    """

    def __init__(self, *, world_size: int, backend: str, timeout: timedelta) -> None:
        super().__init__(
            data_parallel_size=world_size,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            process_group_backend=backend,
            timeout=timeout,
        )

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Lightning asks for it, as with ddp."""
        return True

    @contextmanager
    def block_backward_sync(self) -> Generator[None, None, None]:
        """Add up gradients on this rank while batches are accumulated."""
        assert self.lightning_module is not None
        with unsynchronized(self.lightning_module.net):
            yield

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The weights, whole, in rank 0; called by all ranks."""
        assert self.lightning_module is not None
        return self._whole(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer | LightningOptimizer) -> dict[str, Any]:
        """The optimizer's state, whole, in rank 0; called by all ranks."""
        state = optimizer.state_dict()
        moments = {index: self._whole(entries) for index, entries in state["state"].items()}
        return {**state, "state": moments}

    def load_checkpoint(self, checkpoint_path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """What the run's CheckpointIO reads, in every rank."""
        return dict(self.checkpoint_io.load_checkpoint(checkpoint_path))

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:  # noqa: FBT001, FBT002 - Lightning's
        """Each rank takes its part; called by all ranks."""
        module = self.lightning_module
        assert module is not None
        weights = weights_like(module, checkpoint["state_dict"])
        module.load_state_dict(weights, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Each rank takes its part; called by all ranks."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            moments = moments_like(optimizer, state["state"])
            optimizer.load_state_dict({**state, "state": moments})

    def _whole(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Gathered one at a time, and kept by rank 0 alone."""
        found = {}
        for name, value in values.items():
            gathered = whole(value)
            if self.is_global_zero:
                found[name] = gathered.cpu() if isinstance(gathered, Tensor) else gathered
        return found
