"""The points of a sweep: from `--sweep "nodes=1,2 gpus=1,2"` and `--repeat 5` to values. Pure.

Every key is an axis, and all axes multiply, within one option and between several. The first axis
varies slowest, and the repeats of a point follow each other.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.secrets import Stars
from hpcdist.job.check import show
from hpcdist.job.comparison import MAX_POINTS, SHORT_NAMES, SHORT_OF, Comparison, Variant
from hpcdist.job.load import Flag, parse_flag

Axis: TypeAlias = "tuple[str, list[Flag]]"
"""A key of the job, and its values."""
_EXAMPLE = 'for example --sweep "nodes=1,2 train.lr=0.1,0.01"'
_PIECES = re.compile(r"""(?<![^=,[{:\s])(?:"[^"]*"|'[^']*')|.""", re.DOTALL)
"""A text in quotes, or a letter; a quote after a letter is an apostrophe."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One point: the values that make a run of a sweep differ from the others."""

    index: int
    flags: dict[str, Flag]
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
            f"{SHORT_OF.get(key, key)}={Stars().value(flag.text or show(flag.value), key)}"
            for key, flag in self.flags.items()
        ]
        words = words if self.variant is None else [self.variant]
        return " ".join([*words, *([f"repeat={self.repeat}"] if self.num_repeats > 1 else [])])


def make_points(axes: Sequence[Axis], *, num_repeats: int = 1) -> list[Point]:
    """Return all combinations of the axes' values, each `num_repeats` times; JobError where there
    are too many."""
    number = math.prod(len(flags) for _, flags in axes) * num_repeats
    if number > MAX_POINTS:
        raise JobError(
            f"the sweep has {number} points, must be {MAX_POINTS} or fewer",
            hint="give fewer values or repeats, or split it into several sweeps",
        )
    keys, values = [key for key, _ in axes], itertools.product(*(flags for _, flags in axes))
    return [
        Point(
            index=index,
            flags=dict(zip(keys, flags, strict=True)),
            repeat=repeat,
            num_repeats=num_repeats,
        )
        for index, (flags, repeat) in enumerate(itertools.product(values, range(num_repeats)))
    ]


def variant_points(
    comparison: Comparison, given: Mapping[str, Flag], axes: Sequence[Axis], *, num_repeats: int
) -> list[Point]:
    """Return the points of a comparison, where the user gave `given` for all of its variants, and
    `axes` in the place of those in its file.

    All variants are run once before any is run again, so that what changes on a machine in the
    meantime is not taken for a difference between them. Raises JobError.
    """
    if comparison.axes is not None:
        own = axes_from_values(comparison.axes, origin=f"{comparison.source}: sweep")
        points = make_points([*(dict(own) | dict(axes)).items()])
        if len(points) < 2:
            raise JobError(
                f"{comparison.source}: sweep has {len(points)} points, must be 2 or more",
                hint="the first point is what the others are compared with",
            )
        job = comparison.variants[""].job
        variants = {point.label: Variant(job=job, set=point.values) for point in points}
        comparison = msgspec.structs.replace(comparison, variants=variants)
    flags = {name: comparison.flags(name, given) for name in comparison.variants}
    repeated = itertools.product(range(num_repeats), comparison.variants.items())
    return [
        Point(
            index=index,
            flags=flags[name],
            repeat=repeat,
            num_repeats=num_repeats,
            variant=name,
            job=variant.job,
        )
        for index, (repeat, (name, variant)) in enumerate(repeated)
    ]


def parse_sweeps(texts: Sequence[str]) -> list[Axis]:
    """Return the axes of all --sweep options. Raises JobError, which names the option."""
    axes = []
    for text in texts:
        words = [word for word in _split(text, " \t\n", text) if word]
        if not words:
            raise JobError("--sweep is empty: must be key=value,value", hint=_EXAMPLE)
        axes += [_parse_axis(word, text) for word in words]
    return _checked(axes)


def axes_from_values(values: Mapping[str, Sequence[Any]], *, origin: str = "over") -> list[Axis]:
    """Return the axes of values that come from Python, or from a file; raises JobError."""
    axes = []
    for name, listed in values.items():
        if not listed:
            raise JobError(f"{origin}[{name!r}] is empty", hint="give it one value or more")
        flags = [Flag(name=f"{origin}[{name!r}]={show(value)}", value=value) for value in listed]
        axes.append((_key(name), flags))
    return _checked(axes)


def _key(name: str) -> str:
    return SHORT_NAMES.get(name.replace("-", "_"), name)


def _checked(axes: list[Axis]) -> list[Axis]:
    """Return the axes; JobError for a key, or a value of a key, that is given twice."""
    keys = [key for key, _ in axes]
    for key, flags in axes:
        if keys.count(key) > 1:
            name = SHORT_OF.get(key, key)
            hint = f"give all of its values at once: --sweep {name}=...,..."
            raise JobError(f"--sweep {name}: {key} is swept twice", hint=hint)
        # By the names, which have the text: 1, 1.0 and True are equal in Python, but not in a job.
        names = [flag.name for flag in flags]
        if again := next((name for name in names if names.count(name) > 1), None):
            hint = "give each value once; --repeat runs every point several times"
            raise JobError(f"{again} is given twice", hint=hint)
    return axes


def check_given_once(axes: Sequence[Axis], given: Mapping[str, str]) -> None:
    """Raise JobError for a key that is swept and also given by a flag; `given`: key -> flag."""
    for key in (key for key, _ in axes if key in given):
        raise JobError(
            f"--sweep {SHORT_OF.get(key, key)} and {given[key]} contradict each other: both give "
            f"{key}",
            hint="give one of them",
        )


def _parse_axis(word: str, text: str) -> Axis:
    name, equals, listed = word.partition("=")
    if not equals or not all(name.split(".")) or ":" in name:
        raise JobError(f"--sweep {text}: {word!r} must be key=value,value", hint=_EXAMPLE)
    values = [value.strip() for value in _split(listed, ",", text)]
    if not all(values):
        raise JobError(
            f"--sweep {word}: value {values.index('') + 1} of {len(values)} is empty",
            hint='leave out the comma, or write "" for an empty text',
        )
    return _key(name), [parse_flag(f"--sweep {name}={value}", value) for value in values]


def _split(text: str, separators: str, whole: str) -> list[str]:
    """Split where no bracket or quote is open; JobError, which shows `whole`, where one stays."""
    parts, depth = [""], 0
    for piece in _PIECES.findall(text):
        depth += (piece in "[{") - (piece in "]}")
        if piece in separators and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    if depth:
        hint = "close every bracket and quote"
        raise JobError(f"--sweep {whole}: a bracket is missing at its end", hint=hint)
    return parts
