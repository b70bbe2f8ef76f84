"""Job files that compare: the same question put to several jobs, which are the file's variants.

    description: What a second GPU brings
    repeat: 3
    resources: {gpus: 2}
    set: {train.epochs: 3}
    compare:
      one: {job: ddp, set: {strategy: single, resources.gpus: 1}}
      ddp: {job: ddp}

or, in the place of `compare`, one job with all combinations of some values:

    job: ddp
    sweep: {gpus: [1, 2, 4]}

`resources` and `set` hold for all variants; flags and --set come before them; what a variant sets
itself is what makes it that variant, and comes first. The others are compared with the first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.job.check import convert_values, show
from hpcdist.job.files import compares, find_job, named_jobs, read_job_file
from hpcdist.job.load import Flag, load_job
from hpcdist.job.spec import Count, Resources, Section

SHORT_NAMES = {
    "nodes": "resources.nodes",
    "gpus": "resources.gpus",
    "time": "resources.time_limit_min",
    "max_restarts": "launch.max_restarts",
}
"""Short names of keys in a sweep, as in the options of `hpcdist submit` -> the keys."""
SHORT_OF = {key: name for name, key in SHORT_NAMES.items()}
MAX_POINTS = 10_000
"""More is taken for a mistake: every point is a run with a directory of its own."""


class Variant(Section, frozen=True, kw_only=True):
    """One of the jobs that are compared."""

    job: str
    """Name of a job, or path of a job file or script, relative to this file."""
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    """Values of keys, with dots, that make it this variant."""


class _Shared(Section, frozen=True, kw_only=True):
    description: str = ""
    repeat: Count = 3
    """Number of runs of each variant; --repeat comes before it."""
    resources: Resources = Resources()
    set: dict[str, Any] = msgspec.field(default_factory=dict)


class _Compare(_Shared, frozen=True, kw_only=True):
    compare: dict[str, Variant]


class _Sweep(_Shared, frozen=True, kw_only=True):
    job: str
    sweep: dict[str, list[Any]]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison that is checked, but for its jobs."""

    name: str
    description: str
    source: str
    """The file's name in messages."""
    repeat: int
    shared: dict[str, Flag]
    """Key -> the value that all variants take by default."""
    variants: dict[str, Variant]
    """If the file sweeps a job: that job alone, under the empty name."""
    axes: dict[str, list[Any]] | None = None
    """If the file sweeps a job: the values whose combinations are its variants."""

    def flags(self, variant: str, given: Mapping[str, Flag]) -> dict[str, Flag]:
        """The values of one variant, where the user gave `given` for all; raises JobError."""
        own = {}
        for key, value in self.variants[variant].set.items():
            place = f"sweep at {variant}: " if self.axes is not None else f"compare.{variant}.set."
            own[key] = Flag(name=f"{self.source}: {place}{key}={show(value)}", value=value)
            typed = given.get(key)
            # A variant of its own size has it beside --gpus, which is for the others.
            is_size = key.startswith("resources.") and self.axes is None
            if typed is not None and typed.value != value and not is_size:
                raise JobError(
                    f"{typed.name} contradicts {self.source}: {key} is {show(value)} in the "
                    f"variant {variant!r}, and makes it that variant",
                    hint=f"leave {typed.name} out, or give its values by --sweep",
                )
        return {**self.shared, **given, **own}


def find_comparison(name: str | os.PathLike[str]) -> Comparison | None:
    """Return the comparison that a job's name or path means; None for a job. Raises JobError."""
    file = find_job(os.fspath(name))
    values = read_job_file(file) if file.kind == "yaml" else {}
    if not compares(values):
        return None
    kind: type[_Compare | _Sweep] = _Compare if "compare" in values else _Sweep
    read = convert_values(values, kind, file.shown, whole="a comparison")
    sizes = {f"resources.{key}": value for key, value in (values.get("resources") or {}).items()}
    variants = read.compare if isinstance(read, _Compare) else {"": Variant(job=read.job)}
    for key, variant in variants.items():
        if "/" in variant.job or variant.job.endswith((".py", ".yaml", ".yml")):
            path = os.path.join(file.path.parent, os.path.expanduser(variant.job))
            variants[key] = msgspec.structs.replace(variant, job=path)
    if isinstance(read, _Compare) and len(variants) < 2:
        raise JobError(
            f"{file.shown}: compare has {len(variants)} of the 2 or more variants that it needs",
            hint="name another: compare: {one: {job: ddp}, other: {job: ddp, set: {...}}}",
        )
    return Comparison(
        name=file.path.stem,
        description=read.description,
        source=file.shown,
        repeat=read.repeat,
        shared={
            key: Flag(name=f"{file.shown}: {key}={show(value)}", value=value)
            for key, value in (sizes | read.set).items()
        },
        variants=variants,
        axes=read.sweep if isinstance(read, _Sweep) else None,
    )


class JobListing(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `hpcdist jobs`."""

    name: str
    workload: str | None = None
    description: str = ""
    path: str
    error: str | None = None
    """The mistake in it, if it cannot be submitted."""


def list_jobs() -> list[JobListing]:
    """Return every job that has a name; a broken one is listed with what is wrong with it."""
    listed = []
    for name, file in named_jobs().items():
        listing = JobListing(name=name, path=str(file.path))
        try:
            if (comparison := find_comparison(name)) is not None:
                workload, description = "compare", comparison.description
                for key, variant in comparison.variants.items():
                    load_job(variant.job, flags=comparison.flags(key, {}))
            else:
                job = load_job(name).job
                workload, description = job.workload, job.description
            changes = {"workload": workload, "description": " ".join(description.split())}
        except JobError as error:
            changes = {"error": error.message}
        listed.append(msgspec.structs.replace(listing, **changes))
    return listed
