"""Digests of parameters and batches: cheap numbers by which replicas, or two runs, are told apart.

The digest of a tensor is the sum of its bit patterns, taken as integers, each times an odd weight
that its place has, modulo 2**64. A weight that is odd loses no bit, so that any single bit counts,
and no two places have the same, so that the order counts. What is compared are bits: numbers that
are nan equal themselves. Sums of integers come out the same in whatever order a device adds.

A digest takes a multiplication and an addition per number, on the tensor's own device, and waits
for it once.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hpcdist.rank.context import RankContext
from hpcdist.rank.timing import Timer

MOST_PARTS = 128
"""Parts of a model that have digests of their own: eight digits each."""
_ROW = 1 << 16
_NUMBERS_AT_ONCE = 1 << 22
"""Numbers of a tensor that are looked at together; more would take memory of the device."""
_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)
_MOST_LEAVES = 64
"""Tensors of a batch that are looked at."""
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class TensorDigests:
    """Takes digests of tensors; keeps the weights of places on each device."""

    def __init__(self) -> None:
        self._weights: dict[torch.device, Tensor] = {}

    @torch.no_grad()
    def take(self, tensors: Sequence[Tensor]) -> list[int]:
        """Return the digest of each tensor; what is on one device is waited for once."""
        by_device: dict[torch.device, list[tuple[int, Tensor]]] = defaultdict(list)
        found = [0] * len(tensors)
        for place, tensor in enumerate(tensors):
            bits = _bits(tensor)
            if bits is not None:
                by_device[bits.device].append((place, self._sum(bits)))
        for sums in by_device.values():
            values = torch.stack([value for _, value in sums]).tolist()
            for (place, _), value in zip(sums, values, strict=True):
                found[place] = value & _MASK
        return found

    def _sum(self, bits: Tensor) -> Tensor:
        if (weights := self._weights.get(bits.device)) is None:
            weights = self._weights[bits.device] = _weights(bits.device)
        total = torch.full((), len(bits), dtype=torch.int64, device=bits.device)
        for block in torch.split(bits, _NUMBERS_AT_ONCE):
            num_rows = len(block) // _ROW
            rest = block[num_rows * _ROW :].long()
            total = total * _ODD + rest.mul_(weights[: len(rest)]).sum()
            if num_rows:
                rows = block[: num_rows * _ROW].long().view(num_rows, _ROW)
                total += rows.mul_(weights).sum(1).mul_(weights[1 : num_rows + 1]).sum()
        return total


class Done(NamedTuple):
    """What a loop tells of the step that it has finished."""

    step: int
    loss: Any = None
    learning_rate: Any = None


class Digester:
    """Writes a `digest` event each so many steps; its time belongs to no step."""

    def __init__(
        self, context: RankContext, timer: Timer, model: nn.Module | None, *, first_step: int
    ) -> None:
        """Without `model`, the loop gives it with each digest."""
        self._context = context
        self._timer = timer
        self._model = model
        self._first = first_step + 1
        self._done = Done(step=first_step)
        self._batch: object = None
        self._written_step: int | None = None
        self._names: list[str] | None = None
        self._digests = TensorDigests()

    def begin(self) -> None:
        """Write what the first step begins with, unless that was done."""
        if self._written_step is None:
            self.write(self._model)

    def note_batch(self, batch: object) -> None:
        """Keep the batch of the step that goes on."""
        self._batch = batch

    def step(self, step: int, *, loss: Any = None, learning_rate: Any = None) -> None:
        """Note what a step came to, and write a digest where one is due."""
        self._done = Done(step=step, loss=loss, learning_rate=learning_rate)
        if self._model is not None:
            self.write_due(self._model)

    def write_due(self, model: nn.Module) -> None:
        """Write a digest after the first step, and each so many."""
        step = self._done.step
        if step == self._first or step % self._context.job.record.digest == 0:
            self.write(model)

    def finish(self) -> None:
        """Write what the last step left, unless that was done."""
        self.write(self._model)

    def write(self, model: nn.Module | None) -> None:
        """Write the digests of a model, and of what its last step was made with."""
        done = self._done
        if model is None or done.step == self._written_step:
            return
        self._written_step = done.step
        named = [(_plain(name), parameter) for name, parameter in model.named_parameters()]
        buffers = [buffer for _, buffer in model.named_buffers()]
        leaves = list(islice(_tensors(self._batch), _MOST_LEAVES))
        found = self._digests.take([*(tensor for _, tensor in named), *buffers, *leaves])
        own, of_buffers = found[: len(named)], found[len(named) : len(named) + len(buffers)]
        places = part_places([name for name, _ in named])
        self._write_names(list(places), [tensor for _, tensor in named])
        parts = [_joined(own[place] for place in members) for members in places.values()]
        self._context.events.write(
            "digest",
            step=done.step,
            parameters=f"{_joined(parts):016x}",
            parts="".join(f"{part >> 32:08x}" for part in parts),
            **({"buffers": f"{_joined(of_buffers):016x}"} if of_buffers else {}),
            **({"batch": f"{_joined(found[-len(leaves) :]):016x}"} if leaves else {}),
            **({} if done.loss is None else {"loss": float(done.loss)}),
            **({} if done.learning_rate is None else {"learning_rate": float(done.learning_rate)}),
        )
        self._timer.begin()

    def _write_names(self, names: list[str], parameters: Sequence[Tensor]) -> None:
        """Write, once, what the digests are of, and what else bits depend on."""
        if names == self._names:
            return
        self._names = names
        device = torch.device(self._context.device)
        is_gpu = device.type == "cuda"
        self._context.events.write(
            "digested",
            parts=names,
            is_sharded=any(map(_is_shard, parameters)),
            versions={
                "torch": str(torch.__version__),
                "CUDA": torch.version.cuda,
                "cuDNN": _cudnn_version() if is_gpu else None,
            },
            device=torch.cuda.get_device_name(device) if is_gpu else "CPU",
            num_threads=None if is_gpu else torch.get_num_threads(),
        )


def _cudnn_version() -> str:
    version: Any = torch.backends.cudnn.version
    return str(version())


def make_digester(
    context: RankContext, timer: Timer, model: nn.Module | None, *, first_step: int
) -> Digester | None:
    """Return what writes digests where the job has them written."""
    if not context.job.record.digest:
        return None
    return Digester(context, timer, model, first_step=first_step)


def _weights(device: torch.device) -> Tensor:
    """Return odd numbers that look random, one per place in a row."""
    numbers = torch.arange(1, _ROW + 1, dtype=torch.int64, device=device) * _ODD
    for factor, shift in ((0x3F58476D1CE4E5B9, 31), (0x14D049BB133111EB, 27), (_ODD, 29)):
        numbers = (numbers ^ (numbers >> shift)) * factor
    return numbers | 1


def _bits(tensor: Tensor) -> Tensor | None:
    """Return the numbers of a tensor as integers, in their logical order; None for what has none,
    or none here."""
    local: Any = getattr(tensor, "to_local", None)
    tensor = tensor.detach() if local is None else local().detach()
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.contiguous().view(-1).view(_INTEGERS[tensor.element_size()])


def _is_shard(parameter: Tensor) -> bool:
    """Return whether a parameter is a part of one, which other ranks have other parts of."""
    return hasattr(parameter, "to_local") or type(parameter).__name__ == "FlatParameter"


def _joined(digests: Iterable[int]) -> int:
    """Return one digest for several, in their order."""
    joined = 0
    for digest in digests:
        joined = (joined * _ODD + digest + 1) & _MASK
    return joined


def _plain(name: str) -> str:
    """Return the name of a parameter without what wrappers add."""
    for wrapper in _WRAPPERS:
        name = name.removeprefix(wrapper).replace(f".{wrapper}", ".")
    return name


def part_places(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the parts of a model, and the places of their parameters: single parameters where
    these are few enough, or else the modules as deep as these are; at worst, stretches of them."""
    depth = max((name.count(".") for name in names), default=0) + 1
    for kept in range(depth, 0, -1):
        places = _grouped(names, lambda name: ".".join(name.split(".")[:kept]))  # noqa: B023 - called at once
        if len(places) <= MOST_PARTS:
            return places
    length = math.ceil(len(names) / MOST_PARTS)
    stretches = [range(begin, begin + length) for begin in range(0, len(names), length)]
    return {
        f"{names[own[0]]} and on": [place for place in own if place < len(names)]
        for own in stretches
    }


def _grouped(names: Sequence[str], key: Callable[[str], str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(key(name), []).append(place)
    return groups


def _tensors(batch: object) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in whatever it has them."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from _tensors(value)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from _tensors(getattr(batch, field.name))
