"""Job files that compare: the same question put to several jobs, which are the file's variants.

    description: What a second GPU brings
    repeat: 3
    resources: {gpus: 2}
    set: {train.epochs: 3}
    compare:
      one: {job: ddp, set: {strategy: single, resources.gpus: 1}}
      ddp: {job: ddp}

`resources` and `set` hold for all variants; flags and --set come before them; what a variant sets
itself is what makes it that variant, and comes first. The first variant is what the others are
compared with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from hpcdist.errors import JobError
from hpcdist.job.check import check_values, show
from hpcdist.job.files import JobFile, find_job, read_job_file
from hpcdist.job.load import Flag, load_job
from hpcdist.spec import Count, Resources, Section

_SIZE = "resources."
"""Keys that flags such as --gpus give for all variants but those with a size of their own."""


class ComparisonFile(Section, frozen=True, kw_only=True):
    """A job file that compares several jobs."""

    description: str = ""
    """One line for `hpcdist jobs`."""
    repeat: Count = 3
    """How often each variant is run; --repeat comes before it."""
    resources: Resources = Resources()
    """What all variants ask for, unless they say otherwise."""
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    """Values of keys, with dots, of all variants."""
    compare: dict[str, Any]
    """The variants by name; the others are compared with the first."""


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
    """What messages call the file."""

    def flags(self, variant: str, given: Mapping[str, Flag]) -> dict[str, Flag]:
        """The values of one variant, where the user gave `given` for all; raises JobError."""
        own = {
            key: Flag(name=f"{self.source}: compare.{variant}.set.{key}={show(value)}", value=value)
            for key, value in self.variants[variant].set.items()
        }
        for key, flag in own.items():
            typed = given.get(key)
            if typed is not None and typed.value != flag.value and not key.startswith(_SIZE):
                raise JobError(
                    f"{typed.name} contradicts {self.source}: {key} is {show(flag.value)} in the "
                    f"variant {variant!r}, and makes it that variant",
                    hint="leave it away, or write a comparison of your own",
                )
        return {**self.shared, **given, **own}


def find_comparison(name: str | os.PathLike[str]) -> Comparison | None:
    """The comparison that a job's name or path means; None where it means a job.

    Raises JobError where there is no such file, or it is wrong.
    """
    file = find_job(os.fspath(name))
    values = read_job_file(file) if file.kind == "yaml" else {}
    return _load(file, values) if is_comparison(values) else None


def is_comparison(values: Mapping[str, Any]) -> bool:
    """Whether the keys are those of a file that compares."""
    return "compare" in values and "workload" not in values


def check_comparison(comparison: Comparison) -> None:
    """Raise JobError for the first variant whose job cannot be loaded."""
    for name, variant in comparison.variants.items():
        load_job(variant.job, flags=comparison.flags(name, {}))


def _load(file: JobFile, values: dict[str, Any]) -> Comparison:
    def origin(_: tuple[str, ...]) -> str:
        return file.shown

    check_values(values, ComparisonFile, origin, whole="a comparison")
    checked = msgspec.convert(values, ComparisonFile)
    variants = {name: _variant(file, name, value) for name, value in checked.compare.items()}
    if len(variants) < 2:
        raise JobError(
            f"{file.shown}: compare has {len(variants)} of the 2 or more variants that it needs",
            hint="name another: compare: {one: {job: ddp}, other: {job: ddp, set: {...}}}",
        )
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
    )


def _variant(file: JobFile, name: str, value: Any) -> Variant:
    where = f"{file.shown}: compare.{name}"
    if not isinstance(value, dict):
        raise JobError(
            f"{where} is {show(value)}, must be a section with keys",
            hint=f"for example {name}: {{job: ddp}}",
        )
    check_values(value, Variant, lambda _: where, whole="a variant")
    variant = msgspec.convert(value, Variant)
    if "/" in variant.job or variant.job.endswith((".py", ".yaml", ".yml")):
        path = os.path.join(file.path.parent, os.path.expanduser(variant.job))
        return msgspec.structs.replace(variant, job=path)
    return variant
