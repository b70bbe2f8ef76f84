"""The data that is loaded: a data set of hpcdist, or the user's own, opened once for all ways."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, default_collate

from hpcdist.base.errors import HpcdistError
from hpcdist.data.batches import BatchSource, loader_options, make_batches
from hpcdist.data.catalog import load_data
from hpcdist.data.images.decoding import no_warnings
from hpcdist.data.order import Share
from hpcdist.job.spec import Data

_IMAGES = 128
_MAX_TIME_S = 1.0
"""Each stage is measured for about this long."""
_LEAST_IMAGES = 4


class Source:
    """Samples, loaded in one way."""

    def __init__(
        self,
        data: Data,
        samples: Any,
        collate: Callable[[Any], Any] | None = None,
    ) -> None:
        """`collate` puts batches of a Dataset of the user's together; None: the samples are
        hpcdist's."""
        self._data = data
        self._samples = samples
        self._collate = collate

    def __len__(self) -> int:
        return len(self._samples)

    def open(self, device: torch.device) -> BatchSource:
        """Return the batches as a training takes them; workers start with the first one."""
        if self._collate is not None:
            return _OwnBatches(self._samples, self._collate, self._data, device)
        # Images are decoded to channels_last.
        form = torch.channels_last
        return make_batches(self._samples, device, self._data, memory_format=form)

    def stages(self, indices: Sequence[int]) -> dict[str, float]:
        """Measure the seconds per sample in each stage before the hand-over."""
        indices, samples = indices[:_IMAGES], self._samples
        number = len(indices)
        if self._collate is not None:
            begin_s = time.process_time()
            if hasattr(samples, "__getitems__"):
                whole_s, [items] = _timed([indices], samples.__getitems__)
                item_s = whole_s / number
            else:
                item_s, items = _timed(indices, samples.__getitem__)
                number = len(items)
            computing_s = min(item_s, (time.process_time() - begin_s) / number)
            collate_s = _timed([items], self._collate)[0] / number
            return {"wait": item_s - computing_s, "item": computing_s, "collate": collate_s}
        with no_warnings():
            read_s, contents = _timed(indices, samples.read)
            decode_s, pictures = _timed(
                zip(indices, contents, strict=False), lambda read: samples.decode(*read)
            )
            transform_s, changed = _timed(
                zip(indices, pictures, strict=False), lambda made: samples.change(*made, epoch=0)
            )
            fine = indices[: len(changed)]
            whole_s, _ = _timed([fine], lambda some: samples.batch(some, epoch=0))
        parts_s = {"read": read_s, "decode": decode_s, "transform": transform_s}
        alone_s = sum(parts_s.values())
        return {**parts_s, "collate": max(0.0, whole_s / len(fine) - alone_s)}


def _timed(given: Iterable[Any], stage: Callable[[Any], Any]) -> tuple[float, list[Any]]:
    """Return the mean seconds of a stage, and what it made."""
    spent_s, made = 0.0, []
    for item in given:
        begin_s = time.perf_counter()
        made.append(stage(item))
        spent_s += time.perf_counter() - begin_s
        if spent_s > _MAX_TIME_S and len(made) >= _LEAST_IMAGES:
            break
    return spent_s / max(1, len(made)), made


class _OwnBatches(BatchSource):
    """Batches of a Dataset of the user's, by torch's DataLoader."""

    on_device = False

    def __init__(
        self, samples: Any, collate: Callable[[Any], Any], data: Data, device: torch.device
    ) -> None:
        self._device = device
        self._batches: list[list[int]] = []
        options = loader_options(data, device) | {"collate_fn": collate}
        # batch_sampler may be anything to iterate over.
        self._loader: DataLoader[Any] = DataLoader(samples, batch_sampler=self, **options)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)

    def epoch(self, order: Tensor, shares: Sequence[Share], epoch: int) -> Iterator[Any]:  # noqa: ARG002
        self._batches = [order[share.begin : share.filled_end].tolist() for share in shares]
        return iter(self._loader)

    def bring(self, batch: Any) -> Any:
        """Move the tensors of a batch to the device."""
        return tree_map_only(Tensor, lambda each: each.to(self._device, non_blocking=True), batch)

    def close(self) -> None:
        """Let the workers go, which end with their iterator."""
        self._loader._iterator = None  # noqa: SLF001 - there is no public method


def find_source(data: Data, own: str | None, *, seed: int) -> Source:
    """Return the source for one way of loading; what ways share is opened once. `own` is the job's
    data.dataset."""
    if own is not None:
        samples, collate = _open_own(own)
        return Source(data, samples, collate)
    shared = msgspec.structs.replace(data, workers=0)
    return Source(data, _load(msgspec.json.encode(shared), seed))


@functools.cache
def _load(encoded: bytes, seed: int) -> Any:
    return load_data(msgspec.json.decode(encoded, type=Data), seed=seed).train


@functools.cache
def _open_own(name: str) -> tuple[Any, Callable[[Any], Any]]:
    """Call the user's function, and return the Dataset and what puts a batch of it together."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path[:1]:  # the user's folder, where the check looked first
        sys.path.insert(0, os.getcwd())
    make = getattr(importlib.import_module(module), function, None)
    made: Any = make() if callable(make) else make
    if not hasattr(made, "__getitem__") or not hasattr(made, "__len__") or not len(made):
        raise HpcdistError(
            f"data.dataset is {name}, which gives a {type(made).__name__} without samples, a "
            "length or __getitem__",
            hint="return a map-style Dataset of torch",
        )
    return made, getattr(made, "collate", default_collate)
