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
from hpcdist.data.arrays import BadFile, Samples
from hpcdist.data.batches import BatchSource, loader_options, make_batches
from hpcdist.data.catalog import load_data
from hpcdist.data.images.decoding import UnreadableImageError, no_warnings
from hpcdist.data.images.samples import FastImages
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
        report_bad: Callable[[BadFile], None],
        collate: Callable[[Any], Any] | None = None,
    ) -> None:
        """`report_bad` is called for files that are no images. `collate` puts batches of a Dataset
        of the user's together; None: the samples are hpcdist's."""
        self._data = data
        self._samples = samples
        self._report_bad = report_bad
        self._collate = collate

    def __len__(self) -> int:
        return len(self._samples)

    def open(self, device: torch.device) -> BatchSource:
        """Return the batches as a training takes them; workers start with the first one."""
        if self._collate is not None:
            return _OwnBatches(self._samples, self._collate, self._data, device)
        # Images are decoded to channels_last.
        is_files = isinstance(self._samples, FastImages)
        memory_format = torch.channels_last if is_files else torch.contiguous_format
        return make_batches(
            self._samples,
            device,
            self._data,
            memory_format=memory_format,
            report_bad=self._report_bad,
        )

    def stages(self, indices: Sequence[int]) -> dict[str, float]:
        """Measure the seconds per sample in each stage before the hand-over. Files that are no
        images are left out."""
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
        if isinstance(samples, Samples):  # in memory: it is only put together in batches
            return {"collate": _timed([torch.tensor(indices)], samples.at)[0] / number}
        whole = functools.partial(samples.batch, epoch=0)
        if not isinstance(samples, FastImages):  # in memory, and changed
            return {"transform": _timed([indices], whole)[0] / number}
        with no_warnings():
            read_s, contents = _timed(indices, lambda index: (index, samples.read(index)))
            decode_s, pictures = _timed(contents, lambda read: (read[0], samples.decode(read[1])))
            transform_s, fine = _timed(
                pictures, lambda made: (made[0], samples.change(made[1], made[0], 0))
            )
            whole_s, _ = _timed([[index for index, _ in fine]], whole)
        parts_s = {"read": read_s, "decode": decode_s, "transform": transform_s}
        alone_s = sum(parts_s.values())
        return {**parts_s, "collate": max(0.0, whole_s / max(1, len(fine)) - alone_s)}


def _timed(given: Iterable[Any], stage: Callable[[Any], Any]) -> tuple[float, list[Any]]:
    """Return the mean seconds of a stage, and what it made."""
    spent_s, made = 0.0, []
    for item in given:
        begin_s = time.perf_counter()
        try:
            made.append(stage(item))
        except (OSError, UnreadableImageError):
            continue
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


def find_source(
    data: Data, own: str | None, report_bad: Callable[[BadFile], None], *, seed: int
) -> Source:
    """Return the source for one way of loading; what ways share is opened once. `own` is the job's
    data.dataset."""
    if own is not None:
        samples, collate = _open_own(own)
        return Source(data, samples, report_bad, collate)
    shared = msgspec.structs.replace(data, workers=0)
    return Source(data, _load(msgspec.json.encode(shared), seed), report_bad)


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
