"""The ways of loading that a job compares, and the check of them where it is submitted."""

from __future__ import annotations

import itertools
from typing import Any

from hpcdist.base.errors import JobError
from hpcdist.bench.dataload.figures import Setting
from hpcdist.data.catalog import check_data
from hpcdist.job.check import check_each_once, show
from hpcdist.job.spec import Data, DataloadJob, LoadedData, Model
from hpcdist.training.checks import check_model

_KEYS = Setting.__struct_fields__
"""The last changes fastest: neighbours in time are those that are most compared."""

_MOST_COMBINATIONS = 1_000
"""More is taken for a mistake: that many take hours."""

_SHARED = tuple(
    key
    for key in LoadedData.__struct_fields__
    if key in Data.__struct_fields__ and key not in _KEYS
)
"""Keys with one value for all combinations."""


def combine(job: DataloadJob) -> dict[Setting, Data]:
    """Return every way of loading, with the data section of a training job that loads in it."""
    shared = {key: getattr(job.data, key) for key in _SHARED}
    combinations = {}
    for transform, size, workers in itertools.product(*(several(job.data, key) for key in _KEYS)):
        setting = Setting(transform=in_words(transform), batch_size=size, workers=workers)
        combinations[setting] = Data(**shared, transform=transform, workers=workers)
    return combinations


def several(data: LoadedData, key: str) -> tuple[Any, ...]:
    """Return the values of a key that are compared; a single one where it is no list.

    A list of transforms is one of them, unless it has only lists and names of presets.
    """
    from hpcdist.data.images.transforms import PRESETS

    value = getattr(data, key)
    is_list = isinstance(value, tuple)
    if key == "transform" and is_list:
        is_list = all(isinstance(item, tuple) or item in PRESETS for item in value)
    return value if is_list else (value,)


def in_words(transform: Any) -> str:
    """Write a transform as tables and legends show it."""
    if isinstance(transform, str):
        return transform

    def arguments(given: Any) -> str:
        if isinstance(given, dict):
            return ", ".join(f"{key}={value}" for key, value in given.items())
        return "" if given is None else str(given)

    words = []
    for step in transform:
        named = {} if isinstance(step, str) else step
        words += [f"{name}({arguments(given)})" for name, given in named.items()] or [step]
    return ", ".join(words) or "none"


def check_dataload(job: DataloadJob) -> None:
    """Raise JobError for all that can be known to be wrong without importing torch."""
    from hpcdist.data.images.transforms import check_transform

    if job.model.name is not None:
        check_model(Model(name=job.model.name, args=job.model.args))
        if job.dataload.step_time_s is not None:
            raise JobError(
                f"model.name is {job.model.name} and dataload.step_time_s is "
                f"{job.dataload.step_time_s:g}: loading can be compared with only one of them",
                hint="leave one of them out",
            )
    for key in _KEYS:
        values = several(job.data, key)
        if not values:
            raise JobError(f"data.{key} is empty", hint="list at least one value, or leave it out")
        often = "data.repeats says how often it is timed"
        check_each_once(f"data.{key}", values, hint=often, show=show)
    combinations = combine(job)
    if len(combinations) > _MOST_COMBINATIONS:
        raise JobError(
            f"the lists in data make {len(combinations):,} combinations, more than "
            f"{_MOST_COMBINATIONS:,}",
            hint="shorten the lists, or submit some of them as a job of their own",
        )
    check_data(next(iter(combinations.values())))
    for transform in several(job.data, "transform"):
        check_transform(transform)
