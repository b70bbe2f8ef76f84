"""Memory of a training: what its model needs, the peak, and what would help where it ran out.

Imports torch only where a training runs.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from hpcdist.job.spec import TrainingJob
from hpcdist.runs.events import EventWriter
from hpcdist.training.rules import can_recompute, strategy_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class ModelStates:
    """Bytes that this rank holds as long as it trains."""

    parameter_bytes: int
    """Buffers, such as running means, included."""
    gradient_bytes: int
    optimizer_bytes: int


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor that is cut up over the ranks, any other as it is."""
    to_local = getattr(tensor, "to_local", None)  # of DTensor, whose import costs time
    return tensor if to_local is None else to_local()


def measure_states(model: nn.Module, optimizer: torch.optim.Optimizer) -> ModelStates:
    """Measure what the model needs; gradients and optimizer state are there after a first step."""
    from torch import Tensor

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
    """Return most memory so far: of tensors on a GPU, of the whole process (RSS) on CPUs."""
    if device.type == "cuda":
        import torch

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


_MOMENTS = {"adam": 2, "adamw": 2, "sgd": 1}
"""Numbers that an optimizer keeps for each parameter."""


@dataclass(frozen=True, kw_only=True)
class Holding(ModelStates):
    """Model states of one rank, measured or expected."""

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

    `used_bytes` is all that its tensors held; None: not known.
    """
    rest_bytes = None if used_bytes is None else max(0, used_bytes - holding.total_bytes)
    options = sorted(
        _options(job, world_size, holding, rest_bytes), key=lambda option: -option.gain
    )
    kind = "" if holding.is_measured else _LATER
    held = f"model states are {_listed(holding, kind)}"
    if rest_bytes is not None:
        held += f", and what grows with the batch was {_gb(rest_bytes)}"
    return f"{held}; what would help: {'; '.join(option.text for option in options)}"


def advise_on_model(
    job: TrainingJob, *, num_parameters: int, world_size: int, is_built: bool
) -> str:
    """Return what a model needs that did not fit before its first batch, and what would help.

    `is_built`: it was made on the host, and what failed is to bring it to its device.
    """
    holding = expected_holding(job, num_parameters, world_size)
    model = f"the model has {num_parameters:,} parameters"
    if not is_built:
        return _advise_on_building(job, model, num_parameters, holding)
    options = [] if strategy_of(job) == "fsdp" else [_fsdp(holding, world_size).text]
    if job.train.precision != "bf16-true":
        half = holding.total_bytes / 2
        options.append(f"train.precision=bf16-true, with model states of {_gb(half)} per rank")
    if strategy_of(job) == "fsdp":
        options.append("more ranks: model states shrink in proportion")
    options.append("a smaller model (model.args)")
    return (
        f"{model}, whose states are {_listed(holding, _LATER)}; what would help: "
        f"{'; '.join(options)}; not a smaller batch: there was none yet"
    )


def _advise_on_building(job: TrainingJob, model: str, num_parameters: int, holding: Holding) -> str:
    whole_bytes = num_parameters * _BYTES_WHEN_BUILT
    ranks = job.ranks_per_node
    node = f", {_gb(whole_bytes * ranks)} on a node with {ranks} ranks" if ranks > 1 else ""
    options = ["a smaller model (model.args)", f"hosts with more memory{node and ' per rank'}"]
    if ranks > 1:
        options.append(f"fewer ranks on a node: {_gb(whole_bytes)} with resources.gpus=1")
    return (
        f"{model}: each rank makes it whole in its host's memory, {_gb(whole_bytes)}{node}; its "
        f"states are {_listed(holding, _LATER)}; what would help: "
        f"{'; '.join(options)}; not a smaller batch: there was none yet"
    )


_LATER = ", once a step is done"
_BYTES_WHEN_BUILT = 4
"""Per parameter: models are made in fp32, whatever the precision."""


def _listed(holding: Holding, when: str = "") -> str:
    return (
        f"{_gb(holding.total_bytes)} per rank{when} (parameters {_gb(holding.parameter_bytes)}, "
        f"gradients {_gb(holding.gradient_bytes)}, optimizer {_gb(holding.optimizer_bytes)})"
    )


@dataclass(frozen=True, kw_only=True)
class _Option:
    text: str
    gain: float
    """Bytes, for the order; those of unknown sizes are counted by their share of the states."""


def _options(
    job: TrainingJob, world_size: int, holding: Holding, rest_bytes: int | None
) -> Iterator[_Option]:
    train = job.train
    # Where it is not known, what grows with the batch is what was too much.
    guess = rest_bytes if rest_bytes is not None else holding.total_bytes + 1
    if train.batch_size > 1:
        smaller = train.batch_size // 2
        yield _Option(
            text=f"train.batch_size={smaller} with train.accumulate={train.accumulate * 2} (in "
            f"place of {train.batch_size} and {train.accumulate}), which trains the same"
            + _saves(rest_bytes, 0.5),
            gain=guess * 0.5,
        )
    if train.precision in {"fp32", "tf32"}:
        yield _Option(
            text="train.precision=bf16-mixed" + _saves(rest_bytes, 0.5, most=True),
            gain=guess * 0.45,
        )
    if not train.activation_checkpointing and can_recompute(job):
        yield _Option(
            text="train.activation_checkpointing=true, for about a third more time",
            gain=guess * 0.4,
        )
    yield _more_ranks(holding) if strategy_of(job) == "fsdp" else _fsdp(holding, world_size)


def _fsdp(holding: Holding, world_size: int) -> _Option:
    ranks = max(world_size, 2)
    left = holding.total_bytes / ranks
    return _Option(
        text=f"strategy=fsdp on {ranks} ranks, with model states of {_gb(left)} per rank",
        gain=holding.total_bytes - left,
    )


def _more_ranks(holding: Holding) -> _Option:
    return _Option(
        text="more ranks: model states shrink in proportion, but a step has more samples, unless "
        "train.batch_size or train.accumulate does so too",
        gain=holding.total_bytes / 2,
    )


def _saves(rest_bytes: int | None, share: float, *, most: bool = False) -> str:
    if rest_bytes is None:
        return ""
    return f" and saves {'up to' if most else 'about'} {_gb(rest_bytes * share)}"


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.2f} GB"
