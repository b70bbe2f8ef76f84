"""What each stage of an image's way into a batch costs, one after the other in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from hpcdist.data.arrays import Samples
from hpcdist.data.images.decoding import UnreadableImageError
from hpcdist.data.images.samples import ImageSamples, PixelSamples

_IMAGES = 128
_MAX_TIME_S = 1.0
"""Of each stage, about."""
_LEAST_IMAGES = 4

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


def image_stages(
    samples: ImageSamples, indices: Sequence[int], alive: Callable[[], None]
) -> dict[str, float]:
    """Seconds per image in reading, decoding and transforms, and in putting a batch together: what
    making one takes beyond these. Files that show no picture are left out."""
    read_s, contents = _timed(indices[:_IMAGES], samples.read)
    alive()
    decode_s, pictures = _timed(contents, lambda given: samples.decode(given[1]))
    alive()
    transform_s, _ = _timed(pictures, lambda given: samples.transform(given[1], given[0][0], 0))
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


def pixel_stages(samples: PixelSamples, indices: Sequence[int]) -> dict[str, float]:
    """Of a data set in memory whose images are changed: only that."""
    chosen = indices[:_IMAGES]
    channels, height, width = samples.filled_shape
    pixels = np.empty((len(chosen), height, width, channels), np.uint8)
    fill_s, _ = _timed([chosen], lambda some: samples.fill(pixels, some, 0))
    return {"transform": fill_s / len(chosen)}


def memory_stages(samples: Samples, indices: Sequence[int]) -> dict[str, float]:
    """Of a data set in memory: only putting a batch together."""
    chosen = torch.tensor(indices[:_IMAGES])
    samples.at(chosen)  # the first time takes memory
    batch_s, _ = _timed([chosen], samples.at)
    return {"collate": batch_s / len(chosen)}


def _timed(
    given: Iterable[_Given], stage: Callable[[_Given], _Made]
) -> tuple[float, list[tuple[_Given, _Made]]]:
    """Mean seconds of a stage, and what it made of what."""
    spent_s = 0.0
    made: list[tuple[_Given, _Made]] = []
    for one in given:
        begin_s = time.perf_counter()
        try:
            result: Any = stage(one)
        except (OSError, UnreadableImageError):
            continue
        spent_s += time.perf_counter() - begin_s
        made.append((one, result))
        if spent_s > _MAX_TIME_S and len(made) >= _LEAST_IMAGES:
            break
    return (spent_s / len(made) if made else 0.0), made
