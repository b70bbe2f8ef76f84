"""From the lists of a job to the ways of loading that are measured; pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hpcdist.bench.dataload.figures import OF_WORKERS, Setting
from hpcdist.job.spec import Data, LoadedData

_OF_FILES = ("decoder", "reads", "cache", "handover")
"""Keys that mean nothing where the data set is in memory."""

_OF_TRANSFORM = ("device_transform",)
"""Keys that mean nothing where nothing is left to be done to whole batches."""

_ORDER = tuple(Setting.__struct_fields__)
"""The last changes fastest: neighbours in time are those that are most compared."""


@dataclass(frozen=True, kw_only=True)
class Combination:
    """One way of loading."""

    data: Data
    """As a training job would say it."""
    setting: Setting
    """The same in words, with what can differ within a job."""


def combine(data: LoadedData, *, in_memory: bool) -> list[Combination]:
    """Every combination once; those that differ only in what has no effect are one."""
    from hpcdist.data.images.device_transforms import divide

    values = [several(data, key) for key in _ORDER]
    found: dict[Setting, Combination] = {}
    for point in itertools.product(*values):
        chosen = dict(zip(_ORDER, point, strict=True))
        of_workers = () if chosen["workers"] else OF_WORKERS
        of_files = _OF_FILES if in_memory else ()
        of_transform = () if divide(chosen["transform"]).rest else _OF_TRANSFORM
        without_effect = (*of_workers, *of_files, *of_transform)
        combination = _combination(data, chosen, without_effect)
        found.setdefault(combination.setting, combination)
    return list(found.values())


def several(data: LoadedData, key: str) -> tuple[Any, ...]:
    """The values that are compared of a key; one where it is no list."""
    value = getattr(data, key)
    if key == "transform":
        return transforms(value)
    return value if isinstance(value, tuple) else (value,)


def transforms(value: Any) -> tuple[Any, ...]:
    """A list of which every item is a list or the name of a preset has several transforms."""
    from hpcdist.data.images.transforms import PRESETS

    def is_whole(item: Any) -> bool:
        return isinstance(item, tuple) or (isinstance(item, str) and item in PRESETS)

    if isinstance(value, tuple) and all(map(is_whole, value)):
        return value
    return (value,)


def in_words(transform: Any) -> str:
    """A transform as tables and legends show it."""
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


_SHARED = tuple(
    key
    for key in LoadedData.__struct_fields__
    if key in Data.__struct_fields__ and key not in Setting.__struct_fields__
)
"""Keys with one value for all combinations."""

_USUAL = {field.name: field.default for field in msgspec.structs.fields(Data)}


def _combination(
    data: LoadedData, chosen: dict[str, Any], without_effect: Sequence[str]
) -> Combination:
    chosen = chosen | {key: _USUAL[key] for key in without_effect}
    setting = Setting(**chosen | {"transform": in_words(chosen["transform"])})
    shared = {key: getattr(data, key) for key in _SHARED}
    of_data = {key: value for key, value in chosen.items() if key != "batch_size"}
    return Combination(data=Data(**shared, **of_data), setting=setting)


def varied(settings: Sequence[Setting]) -> list[str]:
    """The keys in which settings differ."""
    return [key for key in _ORDER if len({getattr(setting, key) for setting in settings}) > 1]


def in_job(value: object) -> str:
    """A value as a job file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "unset" if value is None else str(value)
