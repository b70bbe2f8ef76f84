"""The ways of loading that a job compares, and the check of them where it is submitted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.bench.dataload.figures import OF_WORKERS, Setting, in_job
from hpcdist.data.catalog import check_data, find_data_set
from hpcdist.job.check import check_each_once, show
from hpcdist.job.spec import Data, DataloadJob, LoadedData
from hpcdist.training.model.checks import check_model_name

_OF_FILES = ("decoder", "reads", "cache", "handover")
"""Keys that mean nothing where the data set is in memory."""

_KEYS = Setting.__struct_fields__
"""The last changes fastest: neighbours in time are those that are most compared."""

_MOST_COMBINATIONS = 1_000
"""More is taken for a mistake: that many take hours."""

_SHARED = tuple(
    key
    for key in LoadedData.__struct_fields__
    if key in Data.__struct_fields__ and key not in Setting.__struct_fields__
)
"""Keys with one value for all combinations."""

_USUAL = {field.name: field.default for field in msgspec.structs.fields(Data)}

_MAY_BE_IDLE = (*OF_WORKERS, *_OF_FILES, "pin_memory")
"""Keys whose values do not always differ."""


def combine(data: LoadedData, *, in_memory: bool, device: str | None = None) -> dict[Setting, Data]:
    """Return every way of loading once, with the data section of a training job that loads in it;
    those that differ only in keys without effect are one.

    Until the ranks' `device` is known, what differs on some devices counts as different.
    """
    from hpcdist.data.images.transforms import is_unchanged

    has_workers = any(several(data, "workers"))
    pins_by_auto = device not in {None, "cpu"} and "auto" in several(data, "pin_memory")
    shared = {key: getattr(data, key) for key in _SHARED}
    combinations: dict[Setting, Data] = {}
    for point in itertools.product(*(several(data, key) for key in _KEYS)):
        chosen = dict(zip(_KEYS, point, strict=True))
        # Batches are pinned to be copied to a GPU; a data set in memory may be there as a whole.
        is_there = in_memory and not has_workers and is_unchanged(chosen["transform"])
        is_pin_idle = device == "cpu" or is_there or (pins_by_auto and chosen["pin_memory"])
        without_effect = [
            *(() if chosen["workers"] else OF_WORKERS),
            *(_OF_FILES if in_memory else ()),
            *(("pin_memory",) if is_pin_idle else ()),
        ]
        chosen |= {key: _USUAL[key] for key in without_effect}
        setting = Setting(**chosen | {"transform": in_words(chosen["transform"])})
        del chosen["batch_size"]
        combinations.setdefault(setting, Data(**shared, **chosen))
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
        check_model_name(job.model.name)
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
    combinations = combine_job(job)
    if len(combinations) > _MOST_COMBINATIONS:
        raise JobError(
            f"the lists in data make {len(combinations):,} combinations, more than "
            f"{_MOST_COMBINATIONS:,}",
            hint="shorten the lists, or submit some of them as a job of their own",
        )
    for data in {data.root: data for data in combinations.values()}.values():
        check_data(data)
    for transform in several(job.data, "transform"):
        check_transform(transform)


def combine_job(job: DataloadJob, device: str | None = None) -> dict[Setting, Data]:
    """Return the ways of loading that the job measures on a device, once it is known."""
    in_memory = find_data_set(any_data(job)).images is None
    return combine(job.data, in_memory=in_memory, device=device)


def once_notes(job: DataloadJob, device: str) -> Iterator[str]:
    """Say which of the values to compare do not differ on the device in any way of loading."""
    ways = combine_job(job, device)
    for key in _MAY_BE_IDLE:
        values, measured = several(job.data, key), {getattr(way, key) for way in ways}
        alike = [value for value in values if value not in measured or value == _USUAL[key]]
        if len(alike) > 1:
            where = "without a GPU" if key == "pin_memory" and device == "cpu" else "here"
            named = f"{', '.join(map(in_job, alike[:-1]))} and {in_job(alike[-1])}"
            yield f"data.{key}: {named} do not differ {where}, and are measured once"


def any_data(job: DataloadJob) -> Data:
    """Return the data section with only what all ways of loading share: the data set's name."""
    return Data(name=job.data.name)
