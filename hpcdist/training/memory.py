"""The memory that a model needs in training. Imports torch only where a training runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hpcdist.runs.events import EventWriter, Memory

if TYPE_CHECKING:
    import torch
    from torch import nn


class MemoryLog:
    """Records what a training holds after the first step of an attempt."""

    def __init__(self, events: EventWriter) -> None:
        self._events: EventWriter | None = events

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer step is done, and its gradients are still there; only the first counts."""
        if self._events is None:
            return
        moments = [value for state in optimizer.state.values() for value in state.values()]
        self._events.write(
            Memory(
                parameter_bytes=_bytes([*model.parameters(), *model.buffers()]),
                gradient_bytes=_bytes([parameter.grad for parameter in model.parameters()]),
                optimizer_bytes=_bytes(moments),
            )
        )
        self._events = None


def _bytes(values: Iterable[Any]) -> int:
    """Return the size of the tensors among the values: of each, what this rank holds."""
    # Those that are cut up over the ranks are DTensors, whose import costs time.
    own = (value.to_local() if hasattr(value, "to_local") else value for value in values)
    return sum(tensor.nbytes for tensor in own if hasattr(tensor, "nbytes"))
