"""The ways of loading that a job compares, and the check of them where it is submitted."""

from __future__ import annotations

import itertools
import os
import re
import sys
from importlib.machinery import PathFinder
from typing import Any, NamedTuple

from hpcdist.base.errors import JobError
from hpcdist.data.catalog import check_data, find_data_set
from hpcdist.data.images.transforms import PRESETS, check_transform
from hpcdist.job.check import check_each_once
from hpcdist.job.spec import Data, DataloadJob, LoadedData

_KEYS = ("transform", "batch_size", "workers")
"""The last changes fastest: neighbours in time are those that are most compared."""

_SHARED = tuple(
    key
    for key in LoadedData.__struct_fields__
    if key in Data.__struct_fields__ and key not in _KEYS
)
"""Keys with one value for all combinations."""


class Way(NamedTuple):
    """One way of loading: a value of each key that may have several."""

    transform: str | None
    """In words: the name of a preset, or the transforms one after the other; None: the data set is
    the user's own."""
    batch_size: int
    workers: int
    """Per rank; 0: the rank loads by itself."""

    @property
    def keys(self) -> dict[str, int | str]:
        """The keys of its cell."""
        return {key: value for key, value in self._asdict().items() if value is not None}


def combine(job: DataloadJob) -> dict[Way, Data]:
    """Return every way of loading, with the data section of a training job that loads in it."""
    shared = {key: getattr(job.data, key) for key in _SHARED}
    ways = {}
    for transform, size, workers in itertools.product(*(several(job.data, key) for key in _KEYS)):
        words = in_words(transform) if job.data.dataset is None else None
        data = Data(**shared, transform=transform, workers=workers)
        ways[Way(words, size, workers)] = data
    return ways


def several(data: LoadedData, key: str) -> tuple[Any, ...]:
    """Return the values of a key that are compared; a single one where it is no list.

    A list of transforms is one of them, unless it has only lists and names of presets.
    """
    value = getattr(data, key)
    is_list = isinstance(value, tuple)
    if key == "transform":
        if data.dataset is not None:  # which has transforms of its own
            return ("none",)
        is_list = is_list and all(isinstance(item, tuple) or item in PRESETS for item in value)
    return value if is_list else (value,)


def in_words(transform: Any) -> str:
    """Write a transform as tables and legends show it."""
    if isinstance(transform, str):
        return transform
    words = []
    for step in transform:
        for name, given in ({step: None} if isinstance(step, str) else step).items():
            named = given if isinstance(given, dict) else {}
            arguments = [f"{key}={value}" for key, value in named.items()]
            arguments += [str(given)] if given is not None and not named else []
            words.append(name if isinstance(step, str) else f"{name}({', '.join(arguments)})")
    return ", ".join(words) or "none"


def check_dataload(job: DataloadJob) -> None:
    """Raise JobError for all that can be known to be wrong without importing torch."""
    for key in _KEYS:
        values = several(job.data, key)
        if not values:
            raise JobError(f"data.{key} is empty", hint="list at least one value, or leave it out")
        often = "data.repeats says how often it is timed"
        check_each_once(f"data.{key}", values, hint=often)
    if job.data.dataset is not None:
        _check_own(job.data.dataset)
        return
    if find_data_set(job.data).images is None:
        raise JobError(
            f"data.name is {job.data.name}, which is held in memory: there is nothing to load",
            hint="take faces, image_folder, or your own Dataset with data.dataset",
        )
    check_data(next(iter(combine(job).values())))
    for transform in several(job.data, "transform"):
        check_transform(transform)


def _check_own(dataset: str) -> None:
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", dataset):
        raise JobError(
            f"data.dataset is {dataset!r}, which is not of the form package.module:function",
            hint="such as data.dataset=my_data:make, for the function make in my_data.py",
        )
    top = dataset.partition(":")[0].partition(".")[0]
    if PathFinder.find_spec(top, [os.getcwd(), *sys.path]) is None:
        raise JobError(
            f"data.dataset is {dataset!r}, but there is no module {top} in {os.getcwd()} or among "
            "the installed packages",
            hint="submit from the folder that holds it, or put that on PYTHONPATH",
        )
