"""Job files that compare: the same question put to several jobs, which are the file's variants.

    description: What a second GPU brings
    repeat: 3
    resources: {gpus: 2}
    set: {train.epochs: 3}
    compare:
      one: {job: ddp, set: {strategy: single, resources.gpus: 1}}
      ddp: {job: ddp}

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


class ComparisonKeys(Section, frozen=True, kw_only=True):
    """The keys of a job file that compares."""

    description: str = ""
    repeat: Count = 3
    """Number of runs of each variant; --repeat comes before it."""
    resources: Resources = Resources()
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    compare: dict[str, Variant]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison that is checked, but for its jobs."""

    name: str
    source: str
    """The file's name in messages."""
    keys: ComparisonKeys
    """The jobs of the variants have paths from here."""
    shared: dict[str, Flag]
    """Key -> the value that all variants take by default."""

    def flags(self, variant: str, given: Mapping[str, Flag]) -> dict[str, Flag]:
        """The values of one variant, where the user gave `given` for all."""
        own = {
            key: Flag(name=f"{self.source}: compare.{variant}.set.{key}={show(value)}", value=value)
            for key, value in self.keys.compare[variant].set.items()
        }
        return {**self.shared, **given, **own}


def find_comparison(name: str | os.PathLike[str]) -> Comparison | None:
    """Return the comparison that a job's name or path means; None for a job. Raises JobError."""
    file = find_job(os.fspath(name))
    values = read_job_file(file) if file.kind == "yaml" else {}
    if not compares(values):
        return None
    read = convert_values(values, ComparisonKeys, file.shown, whole="a comparison")
    sizes = {f"resources.{key}": value for key, value in (values.get("resources") or {}).items()}
    for key, variant in read.compare.items():
        if "/" in variant.job or variant.job.endswith((".py", ".yaml", ".yml")):
            path = os.path.join(file.path.parent, os.path.expanduser(variant.job))
            read.compare[key] = msgspec.structs.replace(variant, job=path)
    if len(read.compare) < 2:
        raise JobError(
            f"{file.shown}: compare has {len(read.compare)} variants, must be 2 or more",
            hint="name another: compare: {one: {job: ddp}, other: {job: ddp, set: {...}}}",
        )
    return Comparison(
        name=file.path.stem,
        source=file.shown,
        keys=read,
        shared={
            key: Flag(name=f"{file.shown}: {key}={show(value)}", value=value)
            for key, value in (sizes | read.set).items()
        },
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
                workload, description = "compare", comparison.keys.description
                for key, variant in comparison.keys.compare.items():
                    load_job(variant.job, flags=comparison.flags(key, {}))
            else:
                job = load_job(name).job
                workload, description = job.workload, job.description
            changes = {"workload": workload, "description": " ".join(description.split())}
        except JobError as error:
            changes = {"error": error.message}
        listed.append(msgspec.structs.replace(listing, **changes))
    return listed
