"""A script in words: each line with what it does, and the key, flag or default that it comes from.

The words are those of the scheduler (`line_meanings`), of the keys' docstrings, and of the comments
in the script itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.cluster.profile import profile_keys
from hpcdist.job.check import show
from hpcdist.job.keys import job_keys
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import LineMeaning
from hpcdist.schedulers.request import LINE_MEANINGS
from hpcdist.submission.plan import PlannedRun

_BY_DEFAULT = "default"
_DIRECTIVES = ("#SBATCH", "#BSUB", "#PBS")
_OF_PROFILE = "From the profile's list of directives, as it stands there."


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The place that a value comes from."""

    key: str
    value: Any
    origin: str
    """A flag, a file, or `default`."""


class ExplainedLines(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a script that do one thing together."""

    lines: list[str]
    what: str
    origins: list[Origin] = []


def explain_script(planned: PlannedRun, script: str) -> list[ExplainedLines]:
    """Return all lines of a run's script but comments and empty ones, with what they do."""
    found: list[ExplainedLines] = []
    comments: list[str] = []
    for line in script.splitlines():
        text = line.strip()
        if not text:
            continue
        begun = _explained(planned, text)
        if begun is None and text.startswith("# "):
            comments.append(text.lstrip("# "))
            continue
        if begun is None and not comments and found:  # it goes on
            found[-1].lines.append(line)
            continue
        what = " ".join([*comments, *([begun.what] if begun else [])])
        origins = begun.origins if begun else []
        comments = []
        if found and (found[-1].what, found[-1].origins) == (what, origins):
            found[-1].lines.append(line)
        else:
            found.append(ExplainedLines(lines=[line], what=what, origins=origins))
    return found


def _explained(planned: PlannedRun, text: str) -> ExplainedLines | None:
    """Return what a line does that something new begins with; None for any other line."""
    cluster = planned.cluster.profile
    if text in [line.strip() for of_setup in cluster.setup for line in of_setup.splitlines()]:
        return _of(planned, LineMeaning("", "", ["setup"]))
    words = text.split(maxsplit=1)
    if words[0] in _DIRECTIVES and words[-1] in cluster.directives:
        return _of(planned, LineMeaning("", _OF_PROFILE, ["directives"]))
    name = text.removeprefix("export ").partition("=")[0]
    if text.startswith("export ") and name in cluster.environment:
        return _of(planned, LineMeaning("", "", ["environment"]))
    target = planned.target(Run(Path("RUN")))
    directives = planned.scheduler.directives(planned.loaded.job, cluster, target)
    meanings = (
        *(LineMeaning(f"{words[0]} {one.option}", one.why, one.keys) for one in directives),
        *planned.scheduler.line_meanings,
        *LINE_MEANINGS,
    )
    for meaning in meanings:
        if text.startswith(meaning.begins):
            return _of(planned, meaning)
    return None


def _of(planned: PlannedRun, meaning: LineMeaning) -> ExplainedLines:
    origins = [_origin(planned, key.split("|")) for key in meaning.keys]
    what = meaning.what or _meanings()[origins[0].key]
    return ExplainedLines(lines=[], what=what, origins=origins)


def _origin(planned: PlannedRun, keys: Sequence[str]) -> Origin:
    """Return the first of the keys that is set; where none is, the last, with its default."""
    origins = [_origin_of(planned, key) for key in keys]
    return next((one for one in origins if one.value is not None), origins[-1])


def _origin_of(planned: PlannedRun, key: str) -> Origin:
    section, _, rest = key.partition(".")
    if rest and hasattr(planned.loaded.job, section):
        value: Any = planned.loaded.job
        origin = planned.loaded.origin_of(key)
    else:
        value, origin = planned.cluster.profile, planned.cluster.origins[section]
        if origin in planned.cluster.files:
            origin = f"{origin}, cluster {planned.cluster.name}"
    for part in key.split("."):
        value = getattr(value, part)
    return Origin(key=key, value=msgspec.to_builtins(value), origin=origin or _BY_DEFAULT)


@functools.cache
def _meanings() -> dict[str, str]:
    return {key.path: key.meaning for key in [*profile_keys(), *job_keys()]}


def shown_origins(origins: Sequence[Origin]) -> Iterator[str]:
    """Give each key with its value, and where that comes from: `resources.nodes=2 (--nodes)`."""
    for one in origins:
        if isinstance(one.value, list | dict):  # the lines themselves show it
            yield f"{one.key} ({one.origin})"
        elif one.value is None:
            yield f"{one.key} unset"
        else:
            value = f"{one.value:g}" if isinstance(one.value, float) else show(one.value)
            yield f"{one.key}={value.strip(chr(34))} ({one.origin})"
