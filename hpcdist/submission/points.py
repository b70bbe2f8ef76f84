"""The points of a sweep: from `--sweep "nodes=1,2 gpus=1,2"` and `--repeat 5` to values. Pure.

Every key is an axis, and all axes multiply, within one option and between several. The first axis
varies slowest, and the repeats of a point follow each other.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.secrets import Stars
from hpcdist.job.comparison import MAX_POINTS, SHORT_NAMES, SHORT_OF, Comparison
from hpcdist.job.load import Flag

Axes: TypeAlias = "dict[str, list[Flag]]"
"""Keys of the job, and their values."""
_EXAMPLE = 'for example --sweep "nodes=1,2 train.lr=0.1,0.01", with brackets and quotes as in YAML'
_KEY = re.compile(r"[^\s.:]+(?:\.[^\s.:]+)*")
_BETWEEN_AXES = re.compile(r"\s+(?=[\w.:-]+=)(?![^\[{]*[\]}])")
"""Spaces before a key, in no brackets."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One point: the values that make a run of a sweep differ from the others."""

    index: int = 0
    flags: dict[str, Flag] = {}
    """Key -> its value at this point."""
    repeat: int = 0
    """Place among the runs with these values."""
    num_repeats: int = 1
    variant: str | None = None
    """Name of its variant in a comparison; the flags are the variant's."""
    job: str | None = None
    """The variant's; None: all points are of one job."""

    @property
    def values(self) -> dict[str, Any]:
        """Key of the job -> value."""
        return {key: flag.value for key, flag in self.flags.items()}

    @property
    def label(self) -> str:
        """The point in one line: nodes=2 train.lr=0.1 repeat=3; secrets are starred out."""
        words = [
            f"{SHORT_OF.get(key, key)}={Stars().value(flag.text, key)}"
            for key, flag in self.flags.items()
        ]
        words = words if self.variant is None else [self.variant]
        return " ".join([*words, *([f"repeat={self.repeat}"] if self.num_repeats > 1 else [])])


def make_points(axes: Axes, *, num_repeats: int = 1) -> list[Point]:
    """Return all combinations of the axes' values, each `num_repeats` times; JobError where there
    are none or too many."""
    number = math.prod(map(len, axes.values())) * num_repeats
    if not 0 < number <= MAX_POINTS:
        raise JobError(
            f"the sweep has {number} points, must be from 1 to {MAX_POINTS}",
            hint="give each key a value or more; split many into several sweeps",
        )
    values = itertools.product(*axes.values())
    return [
        Point(
            index=index,
            flags=dict(zip(axes, flags, strict=True)),
            repeat=repeat,
            num_repeats=num_repeats,
        )
        for index, (flags, repeat) in enumerate(itertools.product(values, range(num_repeats)))
    ]


def variant_points(
    comparison: Comparison, given: Mapping[str, Flag], *, num_repeats: int
) -> list[Point]:
    """Return the points of a comparison, where the user gave `given` for all of its variants.

    All variants are run once before any is run again, so that what changes on a machine in the
    meantime is not taken for a difference between them.
    """
    repeated = itertools.product(range(num_repeats), comparison.keys.compare.items())
    return [
        Point(
            index=index,
            flags=comparison.flags(name, given),
            repeat=repeat,
            num_repeats=num_repeats,
            variant=name,
            job=variant.job,
        )
        for index, (repeat, (name, variant)) in enumerate(repeated)
    ]


def parse_sweeps(texts: Sequence[str]) -> Axes:
    """Return the axes of all --sweep options, with values as in a list of YAML. Raises JobError,
    which names the option."""
    from hpcdist.job.yaml_text import YamlError, parse_yaml

    values = []
    for text in texts:
        for word in _BETWEEN_AXES.split(text.strip()):
            name, _, listed = word.partition("=")
            with suppress(YamlError):
                if _KEY.fullmatch(name) and (found := parse_yaml(f"[{listed}]")):
                    values.append((name, found))
                    continue
            raise JobError(f"--sweep {text}: {word!r} must be key=value,value", hint=_EXAMPLE)
    return make_axes(values, origin="--sweep")


def make_axes(values: Iterable[tuple[str, Sequence[Any]]], *, origin: str) -> Axes:
    """Return the axes of keys with their values, which `origin` names in messages."""
    axes: Axes = {}
    for name, listed in values:
        key = SHORT_NAMES.get(name.replace("-", "_"), name)
        axes.setdefault(key, []).extend(_flag(f"{origin} {name}", value) for value in listed)
    return axes


def _flag(option: str, value: Any) -> Flag:
    text = value
    if not isinstance(value, str):
        text = json.dumps(value, default=str, separators=(",", ":")).replace('"', "")
    return Flag(name=f"{option}={text}", value=value, text=text)
