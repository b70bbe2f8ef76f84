"""Memory of a training in one rank: what its model needs whatever the batch, and the peak."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from hpcdist.runs.events import EventWriter


@dataclass(frozen=True, kw_only=True)
class ModelStates:
    """Bytes that this rank holds as long as it trains."""

    parameter_bytes: int
    """Buffers, such as running means, included."""
    gradient_bytes: int
    optimizer_bytes: int


def local(tensor: Tensor) -> Tensor:
    """Of a tensor that is cut up over the ranks, the part of this one; any other as it is."""
    to_local = getattr(tensor, "to_local", None)  # of DTensor, whose import costs time
    return tensor if to_local is None else to_local()


def measure_states(model: nn.Module, optimizer: torch.optim.Optimizer) -> ModelStates:
    """What the model needs; gradients and optimizer state are there after a first step."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    moments = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    return ModelStates(
        parameter_bytes=_bytes([*model.parameters(), *model.buffers()]),
        gradient_bytes=_bytes(gradients),
        optimizer_bytes=_bytes(moments),
    )


def peak_bytes(device: torch.device) -> int:
    """Most memory so far: of tensors on a GPU, of the whole process (RSS) on CPUs."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class MemoryLog:
    """Records what a training holds: after the first step of an attempt, and at its end."""

    def __init__(self, events: EventWriter, device: torch.device) -> None:
        self._events = events
        self._device = device
        self._states: ModelStates | None = None

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, step: int) -> None:
        """An optimizer step is done, and its gradients are still there; only the first counts."""
        if self._states is None:
            self._states = measure_states(model, optimizer)
            self._write("first_step", step)

    def end(self, *, step: int) -> None:
        """No step follows: what the first one held is told again, with the peak by now."""
        if self._states is not None:
            self._write("end", step)

    def _write(self, when: str, step: int) -> None:
        assert self._states is not None
        self._events.write(
            "memory",
            when=when,
            step=step,
            **asdict(self._states),
            peak_bytes=peak_bytes(self._device),
        )


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(local(tensor).nbytes for tensor in tensors)
