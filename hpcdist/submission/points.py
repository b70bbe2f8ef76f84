"""The points of a sweep: from `--sweep "nodes=1,2 gpus=1,2"` and `--repeat 5` to values. Pure.

Every key is an axis, and all axes multiply, within one option and between several; but keys that a
colon joins step together, as in `gpus:train.batch_size=1:64,2:32`. The first axis varies slowest,
and the repeats of a point follow each other.
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
from hpcdist.job.comparison import MAX_POINTS, SHORT_NAMES, SHORT_OF, Comparison
from hpcdist.job.load import Flag, parse_flag

Axis: TypeAlias = "list[dict[str, Flag]]"
"""Steps of one key, or of keys that change together: key of the job -> its value."""
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
    number = math.prod(map(len, axes)) * num_repeats
    if number > MAX_POINTS:
        raise JobError(
            f"the sweep has {number} points, must be {MAX_POINTS} or fewer",
            hint="give fewer values or repeats, or split it into several sweeps",
        )
    return [
        Point(
            index=index,
            flags={key: flag for step in steps for key, flag in step.items()},
            repeat=index % num_repeats,
            num_repeats=num_repeats,
        )
        for index, (steps, _) in enumerate(
            itertools.product(itertools.product(*axes), range(num_repeats))
        )
    ]


def variant_points(
    comparison: Comparison, given: Mapping[str, Flag], *, num_repeats: int
) -> list[Point]:
    """Return the points of a comparison, where the user gave `given` for all of its variants.

    All variants are run once before any is run again, so that what changes on a machine in the
    meantime is not taken for a difference between them. Raises JobError.
    """
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


def axes_from_values(values: Mapping[str, Sequence[Any]]) -> list[Axis]:
    """Return the axes of values that come from Python; raises JobError."""
    if empty := [name for name, listed in values.items() if not listed]:
        raise JobError(f"over[{empty[0]!r}] is empty", hint="give it one value or more")
    return _checked(
        [
            [
                {_key(name): Flag(name=f"over[{name!r}]={show(value)}", value=value)}
                for value in listed
            ]
            for name, listed in values.items()
        ]
    )


def _key(name: str) -> str:
    return SHORT_NAMES.get(name.replace("-", "_"), name)


def _checked(axes: list[Axis]) -> list[Axis]:
    """Return the axes; JobError for a key, or a value of a key, that is given twice."""
    keys = [key for axis in axes for key in axis[0]]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        name = SHORT_OF.get(twice, twice)
        hint = f"give all of its values at once: --sweep {name}=...,..."
        raise JobError(f"--sweep {name}: {twice} is swept twice", hint=hint)
    for axis in axes:
        # By the names, which have the text: 1, 1.0 and True are equal in Python, but not in a job.
        steps = [" ".join(flag.name for flag in step.values()) for step in axis]
        if again := next((step for step in steps if steps.count(step) > 1), None):
            hint = "give each value once; --repeat runs every point several times"
            raise JobError(f"{again} is given twice", hint=hint)
    return axes


def check_given_once(axes: Sequence[Axis], given: Mapping[str, str]) -> None:
    """Raise JobError for a key that is swept and also given by a flag; `given`: key -> flag."""
    for key in (key for axis in axes for key in axis[0] if key in given):
        raise JobError(
            f"--sweep {SHORT_OF.get(key, key)} and {given[key]} contradict each other: both give "
            f"{key}",
            hint="give one of them",
        )


def _parse_axis(word: str, text: str) -> Axis:
    joined, equals, listed = word.partition("=")
    names = joined.split(":")
    if not equals or not all(all(name.split(".")) for name in names):
        raise JobError(f"--sweep {text}: {word!r} must be key=value,value", hint=_EXAMPLE)
    values = [value.strip() for value in _split(listed, ",", text)]
    if not all(values):
        raise JobError(
            f"--sweep {word}: value {values.index('') + 1} of {len(values)} is empty",
            hint='leave out the comma, or write "" for an empty text',
        )
    axis = []
    for value in values:
        parts = [part.strip() for part in _split(value, ":", text)] if names[1:] else [value]
        if len(parts) != len(names) or not all(parts):
            raise JobError(
                f"--sweep {text}: {value!r} must have a value for each of {', '.join(names)}",
                hint=f"join them by colons: {joined}={':'.join(['...'] * len(names))},...",
            )
        pairs = zip(names, parts, strict=True)
        axis.append(
            {_key(name): parse_flag(f"--sweep {name}={part}", part) for name, part in pairs}
        )
    return axis


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
