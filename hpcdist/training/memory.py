"""Memory of a training: what its model needs, the peak, and what would help where it ran out.

Imports torch only where a training runs.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcdist.job.spec import TrainingJob
from hpcdist.runs.events import EventWriter
from hpcdist.training.checks import can_recompute, strategy_of

if TYPE_CHECKING:
    import torch
    from torch import nn


class MemoryLog:
    """Records what a training holds: after the first step of an attempt, and at its end."""

    def __init__(self, events: EventWriter, device: torch.device) -> None:
        self._events = events
        self._device = device
        self._states: dict[str, int] | None = None

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, step: int) -> None:
        """An optimizer step is done, and its gradients are still there; only the first counts."""
        if self._states is None:
            moments = [value for state in optimizer.state.values() for value in state.values()]
            self._states = {
                "parameter_bytes": _bytes([*model.parameters(), *model.buffers()]),
                "gradient_bytes": _bytes([parameter.grad for parameter in model.parameters()]),
                "optimizer_bytes": _bytes(moments),
            }
            self._write("first_step", step)

    def end(self, *, step: int) -> None:
        """No step follows: what the first one held is told again, with the peak by now."""
        if self._states is not None:
            self._write("end", step)

    def _write(self, when: str, step: int) -> None:
        if self._device.type == "cuda":  # of tensors; on CPUs of the whole process (RSS)
            import torch

            peak_bytes = torch.cuda.max_memory_allocated(self._device)
        else:
            peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._events.write(
            "memory", when=when, step=step, **(self._states or {}), peak_bytes=peak_bytes
        )


def _bytes(values: Iterable[Any]) -> int:
    """Return the size of the tensors among the values: of each, what this rank holds."""
    # Those that are cut up over the ranks are DTensors, whose import costs time.
    own = (value.to_local() if hasattr(value, "to_local") else value for value in values)
    return sum(tensor.nbytes for tensor in own if hasattr(tensor, "nbytes"))


_MOMENTS = {"adam": 2, "adamw": 2, "sgd": 1}
"""Numbers that an optimizer keeps for each parameter."""


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Model states: bytes that one rank holds as long as it trains, measured or expected."""

    parameter_bytes: int
    """Buffers, such as running means, included."""
    gradient_bytes: int
    optimizer_bytes: int
    is_measured: bool = True
    """Else computed from the number of parameters, since no step was done."""

    @property
    def total_bytes(self) -> int:
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


def expected_holding(job: TrainingJob, num_parameters: int, world_size: int) -> Holding:
    """Return the model states that the first step would bring about."""
    size = 2 if job.train.precision == "bf16-true" else 4
    own = num_parameters * size // (world_size if strategy_of(job) == "fsdp" else 1)
    has_moments = job.train.optimizer != "sgd" or job.train.momentum > 0
    number = _MOMENTS[job.train.optimizer] if has_moments else 0
    return Holding(
        parameter_bytes=own,
        gradient_bytes=own,
        optimizer_bytes=own * number,
        is_measured=False,
    )


def advise(
    job: TrainingJob, *, world_size: int, holding: Holding, used_bytes: int | None = None
) -> str:
    """Return what a rank held, and what would make that less, the greatest gain first.
    `used_bytes` is all that its tensors held; None: not known."""
    rest_bytes = None if used_bytes is None else max(0, used_bytes - holding.total_bytes)
    options = sorted(_options(job, world_size, holding, rest_bytes), key=lambda option: -option[0])
    kind = "" if holding.is_measured else _LATER
    held = f"model states are {_listed(holding, kind)}"
    if rest_bytes is not None:
        held += f", and what grows with the batch was {_gb(rest_bytes)}"
    return f"{held}; what would help: {'; '.join(text for _, text in options)}"


def advise_on_model(
    job: TrainingJob, *, num_parameters: int, world_size: int, is_built: bool
) -> str:
    """Return what a model needs that did not fit before its first batch, and what would help.
    `is_built`: it was made on the host, and what failed is to bring it to its device."""
    holding = expected_holding(job, num_parameters, world_size)
    model = f"the model has {num_parameters:,} parameters"
    states = f"states are {_listed(holding, _LATER)}"
    if not is_built:
        whole_bytes = num_parameters * _BYTES_WHEN_BUILT
        ranks = job.ranks_per_node
        node = f", {_gb(whole_bytes * ranks)} on a node with {ranks} ranks" if ranks > 1 else ""
        options = ["a smaller model (model.args)", f"hosts with more memory{node and ' per rank'}"]
        if ranks > 1:
            options.append(f"fewer ranks on a node: {_gb(whole_bytes)} with resources.gpus=1")
        return (
            f"{model}: each rank makes it whole in its host's memory, {_gb(whole_bytes)}{node}; "
            f"its {states}; what would help: {'; '.join(options)}; {_NOT_THE_BATCH}"
        )
    options = [] if strategy_of(job) == "fsdp" else [_fsdp(holding, world_size)[1]]
    if job.train.precision != "bf16-true":
        half = holding.total_bytes / 2
        options.append(f"train.precision=bf16-true, with model states of {_gb(half)} per rank")
    if strategy_of(job) == "fsdp":
        options.append("more ranks: model states shrink in proportion")
    options.append("a smaller model (model.args)")
    return f"{model}, whose {states}; what would help: {'; '.join(options)}; {_NOT_THE_BATCH}"


_NOT_THE_BATCH = "not a smaller batch: there was none yet"
_LATER = ", once a step is done"
_BYTES_WHEN_BUILT = 4
"""Per parameter: models are made in fp32, whatever the precision."""


def _listed(holding: Holding, when: str = "") -> str:
    return (
        f"{_gb(holding.total_bytes)} per rank{when} (parameters {_gb(holding.parameter_bytes)}, "
        f"gradients {_gb(holding.gradient_bytes)}, optimizer {_gb(holding.optimizer_bytes)})"
    )


def _options(
    job: TrainingJob, world_size: int, holding: Holding, rest_bytes: int | None
) -> Iterator[tuple[float, str]]:
    """Yield what would help, and by how many bytes, for the order: those of unknown sizes by their
    share of the states."""
    train = job.train
    # Where it is not known, what grows with the batch is what was too much.
    guess = rest_bytes if rest_bytes is not None else holding.total_bytes + 1
    saved = None if rest_bytes is None else _gb(rest_bytes * 0.5)
    if train.batch_size > 1:
        text = (
            f"train.batch_size={train.batch_size // 2} with train.accumulate="
            f"{train.accumulate * 2} (in place of {train.batch_size} and {train.accumulate}), "
            "which trains the same"
        )
        yield guess * 0.5, text + (f" and saves about {saved}" if saved else "")
    if train.precision in {"fp32", "tf32"}:
        text = "train.precision=bf16-mixed"
        yield guess * 0.45, text + (f" and saves up to {saved}" if saved else "")
    if not train.activation_checkpointing and can_recompute(job):
        yield guess * 0.4, "train.activation_checkpointing=true, for about a third more time"
    if strategy_of(job) != "fsdp":
        yield _fsdp(holding, world_size)
        return
    text = (
        "more ranks: model states shrink in proportion, but a step has more samples, unless "
        "train.batch_size or train.accumulate does so too"
    )
    yield holding.total_bytes / 2, text


def _fsdp(holding: Holding, world_size: int) -> tuple[float, str]:
    ranks = max(world_size, 2)
    left = holding.total_bytes / ranks
    text = f"strategy=fsdp on {ranks} ranks, with model states of {_gb(left)} per rank"
    return holding.total_bytes - left, text


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.2f} GB"
