"""The variants that a job file's section `sweep` stands for: one per combination of its values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdist.base.errors import JobError
from hpcdist.job.check import show
from hpcdist.job.lists import check_each_once

SHORT_NAMES = {
    "nodes": "resources.nodes",
    "gpus": "resources.gpus",
    "time": "resources.time_limit_min",
    "max_restarts": "launch.max_restarts",
}
"""What a sweep may call a key: as the options of `hpcdist submit` do."""

MAX_POINTS = 10_000
"""More is taken for a mistake: every point is a run with a directory of its own."""

Axes = dict[str, list[Any]]
"""Key, or its short name -> the values that it takes; the first varies slowest."""


def check_axes(given: Mapping[str, Any], source: str) -> Axes:
    """The section `sweep` of the file that messages call `source`; JobError for a mistake in it."""
    if not given:
        raise JobError(f"{source}: sweep has no keys", hint="for example sweep: {gpus: [1, 2]}")
    for key, values in given.items():
        where = f"{source}: sweep.{key}"
        if not isinstance(values, list) or not values:
            raise JobError(
                f"{where} is {show(values)}, must be a list of values",
                hint=f"for example {key}: [1, 2]",
            )
        # 1 and "1" would be one name in the tables.
        often = "repeat says how often each point is run"
        check_each_once(where, values, hint=often, show=_shown)
    if len({_key(key) for key in given}) < len(given):
        raise JobError(f"{source}: sweep has the same key twice", hint="give all of its values")
    return dict(given)


def with_axes(axes: Axes, others: Mapping[str, Sequence[Any]]) -> Axes:
    """The axes with the values of others, which come in the place of those of the same key."""
    places = {_key(name): name for name in axes}
    found = dict(axes)
    for name, values in others.items():
        found[places.get(_key(name), name)] = list(values)
    return found


def combinations(axes: Axes, source: str) -> dict[str, dict[str, Any]]:
    """What a point is called -> the values of its keys, in the order in which they are run."""
    number = math.prod(map(len, axes.values()))
    if not 2 <= number <= MAX_POINTS:
        raise JobError(
            f"{source}: sweep has {number} points, must be from 2 to {MAX_POINTS}",
            hint="the first point is what the others are compared with",
        )
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return {_name(point): {_key(name): value for name, value in point.items()} for point in points}


def _key(name: str) -> str:
    return SHORT_NAMES.get(name, name)


def _name(point: Mapping[str, Any]) -> str:
    """`strategy=ddp gpus=2`."""
    return " ".join(f"{name}={_shown(value)}" for name, value in point.items())


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else show(value)
