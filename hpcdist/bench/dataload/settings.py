"""The ways of loading that a job compares, and the check of them where it is submitted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.bench.dataload.figures import OF_WORKERS, Setting
from hpcdist.data.catalog import check_data, find_data_set
from hpcdist.data.images.device_transforms import check_device_transform
from hpcdist.job.check import check_each_once, show
from hpcdist.job.spec import Data, DataloadJob, LoadedData
from hpcdist.training.model.checks import check_model_name

_OF_FILES = ("decoder", "reads", "cache", "handover")
"""Keys that mean nothing where the data set is in memory."""

_OF_TRANSFORM = ("device_transform",)
"""Keys that mean nothing where nothing is left to be done to whole batches."""

_KEYS = tuple(Setting.__struct_fields__)
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


@dataclass(frozen=True, kw_only=True)
class Combination:
    """One way of loading."""

    data: Data
    """The data section of a training job that loads in this way."""
    setting: Setting
    """The keys that can differ within a job, with the transform in words."""


def combine(data: LoadedData, *, in_memory: bool) -> list[Combination]:
    """Return every combination once; those that differ only in keys without effect are one."""
    from hpcdist.data.images.device_transforms import divide

    values = [several(data, key) for key in _KEYS]
    combinations: dict[Setting, Combination] = {}
    for point in itertools.product(*values):
        chosen = dict(zip(_KEYS, point, strict=True))
        of_workers = () if chosen["workers"] else OF_WORKERS
        of_files = _OF_FILES if in_memory else ()
        of_transform = () if divide(chosen["transform"]).rest else _OF_TRANSFORM
        without_effect = (*of_workers, *of_files, *of_transform)
        combination = _combination(data, chosen, without_effect)
        combinations.setdefault(combination.setting, combination)
    return list(combinations.values())


def several(data: LoadedData, key: str) -> tuple[Any, ...]:
    """Return the values of a key that are compared; a single one where it is no list."""
    value = getattr(data, key)
    if key == "transform":
        return transforms(value)
    return value if isinstance(value, tuple) else (value,)


def transforms(value: Any) -> tuple[Any, ...]:
    """Return the transforms: a list of lists and names of presets has several."""
    from hpcdist.data.images.transforms import PRESETS

    def is_whole(item: Any) -> bool:
        return isinstance(item, tuple) or (isinstance(item, str) and item in PRESETS)

    if isinstance(value, tuple) and all(map(is_whole, value)):
        return value
    return (value,)


def in_words(transform: Any) -> str:
    """Write a transform as tables and legends show it."""
    if isinstance(transform, str):
        return transform
    return ", ".join(map(_step_in_words, transform)) or "none"


def _step_in_words(step: Any) -> str:
    if isinstance(step, str):
        return step
    return ", ".join(f"{name}({_arguments(given)})" for name, given in step.items())


def _arguments(given: Any) -> str:
    if isinstance(given, dict):
        return ", ".join(f"{key}={value}" for key, value in given.items())
    return "" if given is None else str(given)


def _combination(
    data: LoadedData, chosen: dict[str, Any], without_effect: Sequence[str]
) -> Combination:
    chosen = chosen | {key: _USUAL[key] for key in without_effect}
    setting = Setting(**chosen | {"transform": in_words(chosen["transform"])})
    shared = {key: getattr(data, key) for key in _SHARED}
    of_data = {key: value for key, value in chosen.items() if key != "batch_size"}
    return Combination(data=Data(**shared, **of_data), setting=setting)


def check_dataload(job: DataloadJob) -> None:
    """Raise JobError for all that can be known to be wrong without importing torch."""
    if job.model.name is not None:
        check_model_name(job.model.name)
        if job.dataload.step_time_s is not None:
            raise JobError(
                f"model.name is {job.model.name} and dataload.step_time_s is "
                f"{job.dataload.step_time_s:g}: loading can be compared with only one of them",
                hint="leave one of them out",
            )
    for key in _KEYS:
        _check_list(job, key)
    combinations = combine_job(job)
    if len(combinations) > _MOST_COMBINATIONS:
        raise JobError(
            f"the lists in data make {len(combinations):,} combinations, more than "
            f"{_MOST_COMBINATIONS:,}",
            hint="shorten the lists, or submit some of them as a job of their own",
        )
    for data in {combination.data.root: combination.data for combination in combinations}.values():
        check_data(data)
    _check_transforms(job)
    for combination in combinations:
        check_device_transform(combination.data)


def _check_list(job: DataloadJob, key: str) -> None:
    values = several(job.data, key)
    if not values:
        raise JobError(f"data.{key} is empty", hint="list at least one value, or leave it out")
    often = "data.repeats says how often it is timed"
    check_each_once(f"data.{key}", values, hint=often, show=show)


def _check_transforms(job: DataloadJob) -> None:
    from hpcdist.data.images.transforms import check_transform

    for transform in several(job.data, "transform"):
        check_transform(transform)


def combine_job(job: DataloadJob) -> list[Combination]:
    """Return the ways of loading that the job measures."""
    return combine(job.data, in_memory=find_data_set(any_data(job)).images is None)


def any_data(job: DataloadJob) -> Data:
    """Return the data section with only what all ways of loading share: the data set's name."""
    return Data(name=job.data.name)
