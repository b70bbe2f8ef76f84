"""The data sets that a job compares: each is opened once, and loaded from in several ways.

The system is made to forget their files, so that a first pass reads from storage.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from typing import Any, TypeVar

import torch

from hpcdist.base.files import open_regular
from hpcdist.bench.dataload.figures import Temperature
from hpcdist.data.arrays import BadFile, Samples
from hpcdist.data.batches import BatchSource, make_batches
from hpcdist.data.catalog import find_images, load_data, open_images
from hpcdist.data.images.decoding import UnreadableImageError, no_warnings
from hpcdist.data.images.samples import FastImages, TransformedImages
from hpcdist.job.spec import Data
from hpcdist.rank.context import RankContext

_IMAGES = 128
_MAX_TIME_S = 1.0
"""Each stage is measured for about this long."""
_LEAST_IMAGES = 4

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")

_ASKED = 64
_MOSTLY = 0.1  # fewer than this share in memory: cold


class Source:
    """Training images, loaded in one way."""

    def __init__(
        self,
        data: Data,
        samples: Samples | TransformedImages,
        num_classes: int,
        report_bad: Callable[[BadFile], None],
    ) -> None:
        """`report_bad` is called for files that are no images."""
        self._data = data
        self._samples = samples
        self.num_classes = num_classes
        self._report_bad = report_bad

    def __len__(self) -> int:
        return len(self._samples)

    def paths(self, indices: Sequence[int]) -> list[str]:
        """Return the files of these samples; none where the data set is in memory."""
        if isinstance(self._samples, FastImages):
            return [self._samples.name(index) for index in indices]
        return []

    def stages(self, indices: Sequence[int], alive: Callable[[], None]) -> dict[str, float]:
        """Measure the seconds per image in each stage before the hand-over."""
        if isinstance(self._samples, FastImages):
            with no_warnings():
                return _image_stages(self._samples, indices, alive)
        chosen, samples = indices[:_IMAGES], self._samples
        if not isinstance(samples, Samples):  # in memory, and changed
            fill_s, _ = _timed([chosen], lambda some: samples.batch(some, 0))
            return {"transform": fill_s / len(chosen)}
        # A data set in memory is only put together in batches.
        places = torch.tensor(chosen)
        samples.at(places)  # the first time takes memory
        batch_s, _ = _timed([places], samples.at)
        return {"collate": batch_s / len(chosen)}

    @contextmanager
    def open(self, context: RankContext) -> Iterator[BatchSource]:
        """Yield batches as a training takes them; workers start with the first one."""
        is_files = isinstance(self._samples, FastImages)
        batches = make_batches(
            self._samples,
            torch.device(context.device),
            self._data,
            # Images are decoded to channels_last.
            memory_format=torch.channels_last if is_files else torch.contiguous_format,
            report_bad=self._report_bad,
        )
        try:
            yield batches
        finally:
            batches.close()


class Sources:
    """Lists or loads data once for all ways of loading that share them."""

    def __init__(self, seed: int, report_bad: Callable[[BadFile], None]) -> None:
        """`report_bad` is called for each file that is no image, once."""
        self._seed = seed
        self._report_bad = report_bad
        self._reported: set[str] = set()
        self._found: dict[Any, Any] = {}

    def source(self, data: Data) -> Source:
        """Return the source for one way of loading."""
        parts = self._once(data.root, lambda: find_images(data))
        if parts is not None:
            samples = open_images(parts.train, data, self._seed)
            return Source(data, samples, len(parts.train.classes), self._report_once)
        key = (data.root, repr(data.transform))
        data_set = self._once(key, lambda: load_data(data, seed=self._seed))
        return Source(data, data_set.train, data_set.num_classes, self._report_once)

    def _once(self, key: Any, find: Callable[[], Any]) -> Any:
        if key not in self._found:
            self._found[key] = find()
        return self._found[key]

    def _report_once(self, bad: BadFile) -> None:
        if bad.path not in self._reported:
            self._reported.add(bad.path)
            self._report_bad(bad)


def _image_stages(
    samples: FastImages, indices: Sequence[int], alive: Callable[[], None]
) -> dict[str, float]:
    """Return the seconds per image in reading, decoding and transforms, and in putting a batch
    together: what making one takes beyond these. Files that are no images are left out."""
    read_s, contents = _timed(indices[:_IMAGES], samples.read)
    alive()
    decode_s, pictures = _timed(contents, lambda given: samples.decode(given[1]))
    alive()
    transform_s, _ = _timed(pictures, lambda given: samples.change(given[1], given[0][0], 0))
    alive()
    fine = [given[0] for given, _ in pictures]
    batch_s, _ = _timed([fine] if fine else [], lambda some: samples.batch(some, 0))
    alive()
    left_s = batch_s / len(fine) - read_s if fine else 0.0
    computing_s = decode_s + transform_s
    # Whole batches are made with fewer detours, and some of their files are read at once.
    share = min(1.0, left_s / computing_s) if left_s > 0 and computing_s > 0 else 1.0
    return {
        "read": read_s,
        "decode": decode_s * share,
        "transform": transform_s * share,
        "collate": max(0.0, left_s - computing_s),
    }


def _timed(
    given: Iterable[_Given], stage: Callable[[_Given], _Made]
) -> tuple[float, list[tuple[_Given, _Made]]]:
    """Return the mean seconds of a stage, and its inputs with its outputs."""
    spent_s = 0.0
    made: list[tuple[_Given, _Made]] = []
    for item in given:
        begin_s = time.perf_counter()
        try:
            result: Any = stage(item)
        except (OSError, UnreadableImageError):
            continue
        spent_s += time.perf_counter() - begin_s
        made.append((item, result))
        if spent_s > _MAX_TIME_S and len(made) >= _LEAST_IMAGES:
            break
    return (spent_s / len(made) if made else 0.0), made


def forget(paths: Iterable[str]) -> None:
    """Ask the system to drop what it has of these files in memory.

    It does not drop what is not written to storage yet, nor what others have mapped, and some file
    systems cannot do that: `temperature` returns what came of it.
    """
    for path in paths:
        with contextlib.suppress(OSError), _open(path) as file:  # loading reports errors
            os.fdatasync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _open(path: str) -> FileIO:
    return open_regular(path, most_bytes=math.inf)


def temperature(paths: Sequence[str]) -> Temperature:
    """Return whether files are in memory, by the first bytes of some; this reads no storage."""
    known = []
    for path in paths[:: max(1, len(paths) // _ASKED)]:
        try:
            with _open(path) as file:
                known.append(os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) > 0)
        except BlockingIOError:
            known.append(False)
        except OSError:  # gone, or on a file system that does not know
            continue
    if not known:
        return "unknown"
    return "cold" if sum(known) < _MOSTLY * len(known) else "warm"
