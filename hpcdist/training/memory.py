"""Memory of a training: what its model needs, and the peak.

Imports torch only where a training runs.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hpcdist.runs.events import EventWriter, Memory

if TYPE_CHECKING:
    import torch
    from torch import nn


class MemoryLog:
    """Records what a training holds: after the first step of an attempt, and at its end."""

    def __init__(self, events: EventWriter, device: torch.device) -> None:
        self._events = events
        self._device = device
        self._states: dict[str, int] | None = None

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer step is done, and its gradients are still there; only the first counts."""
        if self._states is None:
            moments = [value for state in optimizer.state.values() for value in state.values()]
            self._states = {
                "parameter_bytes": _bytes([*model.parameters(), *model.buffers()]),
                "gradient_bytes": _bytes([parameter.grad for parameter in model.parameters()]),
                "optimizer_bytes": _bytes(moments),
            }
            self._write("first_step")

    def end(self) -> None:
        """No step follows: what the first one held is told again, with the peak by now."""
        if self._states is not None:
            self._write("end")

    def _write(self, when: str) -> None:
        if self._device.type == "cuda":  # of tensors; on CPUs of the whole process (RSS)
            import torch

            peak_bytes = torch.cuda.max_memory_allocated(self._device)
        else:
            peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._events.write(Memory(when=when, **(self._states or {}), peak_bytes=peak_bytes))


def _bytes(values: Iterable[Any]) -> int:
    """Return the size of the tensors among the values: of each, what this rank holds."""
    # Those that are cut up over the ranks are DTensors, whose import costs time.
    own = (value.to_local() if hasattr(value, "to_local") else value for value in values)
    return sum(tensor.nbytes for tensor in own if hasattr(tensor, "nbytes"))
