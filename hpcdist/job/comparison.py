"""Job files that compare: the same question put to several jobs, which are the file's variants.

    description: What a second GPU brings
    repeat: 3
    resources: {gpus: 2}
    set: {train.epochs: 3}
    compare:
      one: {job: ddp, set: {strategy: single, resources.gpus: 1}}
      ddp: {job: ddp}

or, one and the same job with all combinations of some values:

    job: ddp
    sweep: {gpus: [1, 2, 4]}

`resources` and `set` hold for all variants; flags and --set come before them; what a variant sets
itself is what makes it that variant, and comes first. The first variant is what the others are
compared with.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.job.check import check_each_once, convert_values, show
from hpcdist.job.files import JobFile, compares, find_job, named_jobs, read_job_file
from hpcdist.job.load import Flag, load_job
from hpcdist.job.spec import Count, Resources, Section

SHORT_NAMES = {
    "nodes": "resources.nodes",
    "gpus": "resources.gpus",
    "time": "resources.time_limit_min",
    "max_restarts": "launch.max_restarts",
}
"""Short names of keys in a sweep, as in the options of `hpcdist submit` -> the keys."""

MAX_POINTS = 10_000
"""More is taken for a mistake: every point is a run with a directory of its own."""

Axes = dict[str, list[Any]]
"""Key, or its short name -> the values that it takes; the first varies slowest."""


_SIZE = "resources."
"""Keys that flags such as --gpus give for all variants but those with a size of their own."""


class _ComparingFile(Section, frozen=True, kw_only=True):
    """The keys of both kinds of files."""

    description: str = ""
    """One line for `hpcdist jobs`."""
    repeat: Count = 3
    """Number of runs of each variant; --repeat comes before it."""
    resources: Resources = Resources()
    """Resources of all variants, unless they say otherwise."""
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    """Values of keys, with dots, of all variants."""


class ComparisonFile(_ComparingFile, frozen=True, kw_only=True):
    """A job file that compares several jobs."""

    compare: dict[str, Any]
    """The variants by name; the others are compared with the first."""


class SweepFile(_ComparingFile, frozen=True, kw_only=True):
    """A job file that compares one job with itself, at all combinations of several values."""

    job: str
    """Name of a job, or path of a job file or script, relative to this file."""
    sweep: dict[str, Any]
    """Key -> the values that it takes; the others are compared with the first point."""


class Variant(Section, frozen=True, kw_only=True):
    """One of the jobs that are compared."""

    job: str
    """Name of a job, or path of a job file or script, relative to this file."""
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    """Values of keys, with dots, that make it this variant."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison that is checked, but for its jobs."""

    name: str
    description: str
    path: str
    repeat: int
    shared: dict[str, Flag]
    """Key -> the value that all variants take by default."""
    variants: dict[str, Variant]
    source: str
    """The file's name in messages."""
    axes: Axes = {}
    """If the file sweeps a job: the values whose combinations are the variants."""

    def swept(self, others: Mapping[str, Sequence[Any]]) -> Comparison:
        """Return this with other values on its axes, or on more axes; raises JobError."""
        names = {_key(name): name for name in self.axes}
        given = {names.get(_key(name), name): list(values) for name, values in others.items()}
        axes = {**self.axes, **given}
        job = next(iter(self.variants.values())).job
        return msgspec.structs.replace(self, axes=axes, variants=_points(job, axes, self.source))

    def flags(self, variant: str, given: Mapping[str, Flag]) -> dict[str, Flag]:
        """The values of one variant, where the user gave `given` for all; raises JobError."""
        own = {}
        for key, value in self.variants[variant].set.items():
            place = f"sweep at {variant}: " if self.axes else f"compare.{variant}.set."
            own[key] = Flag(name=f"{self.source}: {place}{key}={show(value)}", value=value)
            typed = given.get(key)
            is_other = typed is not None and typed.value != value
            if typed is not None and is_other and (self.axes or not key.startswith(_SIZE)):
                remedy = "give its values by --sweep" if self.axes else "write your own comparison"
                raise JobError(
                    f"{typed.name} contradicts {self.source}: {key} is {show(value)} in the "
                    f"variant {variant!r}, and makes it that variant",
                    hint=f"leave {typed.name} out, or {remedy}",
                )
        return {**self.shared, **given, **own}


def find_comparison(name: str | os.PathLike[str]) -> Comparison | None:
    """Return the comparison that a job's name or path means; None for a job. Raises JobError."""
    file = find_job(os.fspath(name))
    values = read_job_file(file) if file.kind == "yaml" else {}
    if not compares(values):
        return None
    checked: ComparisonFile | SweepFile
    axes: Axes = {}
    if "compare" in values:
        checked = convert_values(values, ComparisonFile, file.shown, whole="a comparison")
        variants = _variants(file, checked.compare)
    else:
        checked = convert_values(values, SweepFile, file.shown, whole="a comparison")
        axes = _check_axes(checked.sweep, file.shown)
        variants = _points(_path_of(file, checked.job), axes, file.shown)
    sizes = {f"{_SIZE}{key}": value for key, value in (values.get("resources") or {}).items()}
    shared = {
        key: Flag(name=f"{file.shown}: {key}={show(value)}", value=value)
        for key, value in (sizes | checked.set).items()
    }
    return Comparison(
        name=file.path.stem,
        description=checked.description,
        path=str(file.path),
        repeat=checked.repeat,
        shared=shared,
        variants=variants,
        source=file.shown,
        axes=axes,
    )


def _check_axes(given: Mapping[str, Any], source: str) -> Axes:
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


def _key(name: str) -> str:
    return SHORT_NAMES.get(name, name)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else show(value)


def _points(job: str, axes: Axes, source: str) -> dict[str, Variant]:
    """Return all combinations, in the order of their runs, by names: `strategy=ddp gpus=2`."""
    number = math.prod(map(len, axes.values()))
    if not 2 <= number <= MAX_POINTS:
        raise JobError(
            f"{source}: sweep has {number} points, must be from 2 to {MAX_POINTS}",
            hint="the first point is what the others are compared with",
        )
    variants = {}
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        name = " ".join(f"{key}={_shown(value)}" for key, value in point.items())
        variants[name] = Variant(job=job, set={_key(key): value for key, value in point.items()})
    return variants


def _variants(file: JobFile, given: Mapping[str, Any]) -> dict[str, Variant]:
    if len(given) < 2:
        raise JobError(
            f"{file.shown}: compare has {len(given)} of the 2 or more variants that it needs",
            hint="name another: compare: {one: {job: ddp}, other: {job: ddp, set: {...}}}",
        )
    variants = {}
    for name, value in given.items():
        where = f"{file.shown}: compare.{name}"
        if not isinstance(value, dict):
            raise JobError(
                f"{where} is {show(value)}, must be a section with keys",
                hint=f"for example {name}: {{job: ddp}}",
            )
        variant = convert_values(value, Variant, where, whole="a variant")
        variants[name] = msgspec.structs.replace(variant, job=_path_of(file, variant.job))
    return variants


def _path_of(file: JobFile, job: str) -> str:
    """A path is relative to the file; a name stays one."""
    if "/" in job or job.endswith((".py", ".yaml", ".yml")):
        return os.path.join(file.path.parent, os.path.expanduser(job))
    return job


class JobListing(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `hpcdist jobs`."""

    name: str
    workload: str | None
    description: str
    path: str
    error: str | None = None
    """The mistake in it, if it cannot be submitted."""


def list_jobs() -> list[JobListing]:
    """Return every job that has a name; a broken one is listed with what is wrong with it."""
    listed = []
    for name, file in named_jobs().items():
        workload, description, mistake = None, "", None
        try:
            if (comparison := find_comparison(name)) is not None:
                for key, variant in comparison.variants.items():
                    load_job(variant.job, flags=comparison.flags(key, {}))
                workload, description = "compare", comparison.description
            else:
                job = load_job(name).job
                workload, description = job.workload, job.description
        except JobError as error:
            mistake = error.message
        listing = JobListing(
            name=name,
            workload=workload,
            description=" ".join(description.split()),
            path=str(file.path),
            error=mistake,
        )
        listed.append(listing)
    return listed
