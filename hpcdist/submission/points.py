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
from typing import Any

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.secrets import Stars
from hpcdist.job.check import show
from hpcdist.job.comparison import MAX_POINTS, SHORT_NAMES, Comparison
from hpcdist.job.load import Flag, parse_flag

_EXAMPLE = 'for example --sweep "nodes=1,2 train.lr=0.1,0.01"'
CLUSTER = "cluster"
"""The axis whose values are no key of the job: the profiles that the runs go by."""
_PIECES = re.compile(r"""(?<![^=,[{:\s])(?:"[^"]*"|'[^']*')|.""", re.DOTALL)
"""A text in quotes, or a letter; a quote after a letter is an apostrophe."""


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """One key and the values that it takes."""

    key: str
    """The key of the job file."""
    name: str
    """As the user calls it: nodes, for resources.nodes."""
    flags: list[Flag]
    """One per value."""
    beside: list[Axis] = []
    """Other keys, which take as many values, and step with this one."""

    @property
    def keys(self) -> list[Axis]:
        """An axis for each key."""
        return [self, *self.beside]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One point: the values that make a run of a sweep differ from the others."""

    index: int
    flags: dict[str, Flag]
    """Key -> its value at this point."""
    repeat: int = 0
    """Place among the runs with these values."""
    num_repeats: int = 1
    names: dict[str, str] = {}
    """Key -> what the user calls it."""
    variant: str | None = None
    """Name of its variant in a comparison; the flags are the variant's."""
    job: str | None = None
    """The variant's; None: all points are of one job."""

    @property
    def values(self) -> dict[str, Any]:
        """Key of the job, or `cluster` -> value."""
        return {key: flag.value for key, flag in self.flags.items()}

    @property
    def job_flags(self) -> dict[str, Flag]:
        """The flags that are keys of the job."""
        return {key: flag for key, flag in self.flags.items() if key != CLUSTER}

    @property
    def cluster(self) -> str | None:
        """Name of the profile that the point goes by; None: that of all points."""
        flag = self.flags.get(CLUSTER)
        return None if flag is None else str(flag.text or flag.value)

    @property
    def label(self) -> str:
        """The point in one line: nodes=2 train.lr=0.1 repeat=3; secrets are starred out."""
        words = [
            f"{self.names.get(key, key)}={Stars().value(flag.text or show(flag.value), key)}"
            for key, flag in self.flags.items()
        ]
        if self.variant is not None:
            words = [self.variant]
        if self.num_repeats > 1:
            words.append(f"repeat={self.repeat}")
        return " ".join(words)


def make_points(axes: Sequence[Axis], *, num_repeats: int = 1) -> list[Point]:
    """Return all combinations of the axes' values, each `num_repeats` times; JobError where there
    are too many."""
    number = math.prod(len(axis.flags) for axis in axes) * num_repeats
    if number > MAX_POINTS:
        raise JobError(
            f"the sweep has {number} points, must be {MAX_POINTS} or fewer",
            hint="give fewer values or repeats, or split it into several sweeps",
        )
    names = {each.key: each.name for axis in axes for each in axis.keys}
    steps = (zip(*(each.flags for each in axis.keys), strict=True) for axis in axes)
    repeated = itertools.product(itertools.product(*steps), range(num_repeats))
    return [
        Point(
            index=index,
            flags=dict(zip(names, itertools.chain.from_iterable(flags), strict=True)),
            repeat=repeat,
            num_repeats=num_repeats,
            names=names,
        )
        for index, (flags, repeat) in enumerate(repeated)
    ]


def variant_points(
    comparison: Comparison, given: Mapping[str, Flag], *, num_repeats: int
) -> list[Point]:
    """Return the points of a comparison, where the user gave `given` for all of its variants.

    All variants are run once before any is run again, so that what changes on a machine in the
    meantime is not taken for a difference between them. Raises JobError.
    """
    flags = {name: comparison.flags(name, given) for name in comparison.variants}
    repeated = itertools.product(range(num_repeats), comparison.variants)
    return [
        Point(
            index=index,
            flags=flags[name],
            repeat=repeat,
            num_repeats=num_repeats,
            variant=name,
            job=comparison.variants[name].job,
        )
        for index, (repeat, name) in enumerate(repeated)
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
    axes = [
        Axis(
            key=SHORT_NAMES.get(name, name),
            name=name,
            flags=[Flag(name=f"over[{name!r}]={show(value)}", value=value) for value in listed],
        )
        for name, listed in values.items()
    ]
    for axis in axes:
        if not axis.flags:
            raise JobError(f"over[{axis.name!r}] is empty", hint="give it one value or more")
    return _checked(axes)


def _checked(axes: Sequence[Axis]) -> list[Axis]:
    """Return the axes; JobError for a key, or a value of a key, that is given twice."""
    keys = [each.key for axis in axes for each in axis.keys]
    for each in itertools.chain.from_iterable(axis.keys for axis in axes):
        if keys.count(each.key) > 1:
            raise JobError(
                f"--sweep {each.name}: {each.key} is swept twice",
                hint=f"give all of its values at once: --sweep {each.name}=...,...",
            )
    for axis in axes:
        # By the names, which have the text: 1, 1.0 and True are equal in Python, but not in a job.
        steps = list(zip(*([flag.name for flag in each.flags] for each in axis.keys), strict=True))
        if twice := next((step for step in steps if steps.count(step) > 1), None):
            raise JobError(
                f"{' '.join(twice)} is given twice",
                hint="give each value once; --repeat runs every point several times",
            )
    return list(axes)


def check_given_once(axes: Sequence[Axis], given: Mapping[str, str]) -> None:
    """Raise JobError for a key that is swept and also given by a flag; `given`: key -> flag."""
    for axis in itertools.chain.from_iterable(axis.keys for axis in axes):
        if axis.key in given:
            raise JobError(
                f"--sweep {axis.name} and {given[axis.key]} contradict each other: both give "
                f"{axis.key}",
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
    steps = [_parse_step(names, value, text) for value in values]
    axes = [
        Axis(key=SHORT_NAMES.get(name.replace("-", "_"), name), name=name, flags=list(flags))
        for name, flags in zip(names, zip(*steps, strict=True), strict=True)
    ]
    return msgspec.structs.replace(axes[0], beside=axes[1:])


def _parse_step(names: Sequence[str], value: str, text: str) -> list[Flag]:
    """Return a value for each of the names that a colon joins: `2:32`."""
    parts = [value] if len(names) == 1 else [part.strip() for part in _split(value, ":", text)]
    if len(parts) != len(names) or not all(parts):
        raise JobError(
            f"--sweep {text}: {value!r} must have a value for each of {', '.join(names)}",
            hint=f"join them by colons: {':'.join(names)}={':'.join(['...'] * len(names))},...",
        )
    return [
        parse_flag(f"--sweep {name}={part}", part) for name, part in zip(names, parts, strict=True)
    ]


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
