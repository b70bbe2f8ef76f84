"""A script in words: each line with what it does, and the key, flag or default that it comes from.

The words are those of the scheduler's directives, of the keys' docstrings, and of the comments in
the script itself.
"""

from __future__ import annotations

import functools
import re
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
    cluster = planned.cluster.profile
    target = planned.target(Run(Path("RUN")))
    meanings = (
        *(LineMeaning(one.strip(), keys=["setup"]) for one in "\n".join(cluster.setup).split("\n")),
        *(LineMeaning(one, _OF_PROFILE, ["directives"]) for one in cluster.directives),
        *(LineMeaning(f"export {name}=", keys=["environment"]) for name in cluster.environment),
        *(
            LineMeaning(one.option, one.why, one.keys)
            for one in planned.scheduler.directives(planned.loaded.job, cluster, target)
        ),
        *planned.scheduler.line_meanings,
        *LINE_MEANINGS,
    )
    found: list[ExplainedLines] = []
    comments: list[str] = []
    for line in filter(str.strip, script.splitlines()):
        text = line.strip()
        option = re.sub(r"^#[A-Z]+ ", "", text)
        texts = (text,) if option == text else (text, option)
        meaning = next(
            (
                one
                for one in meanings
                if one.begins and any(t.startswith(one.begins) for t in texts)
            ),
            None,
        )
        if meaning is None and text.startswith("# "):
            comments.append(text.lstrip("# "))
            continue
        if meaning is None and not comments and found:  # it goes on
            found[-1].lines.append(line)
            continue
        origins = [_origin(planned, key.split("|")) for key in meaning.keys] if meaning else []
        if meaning:
            comments.append(meaning.what or _meanings()[origins[0].key])
        what, comments = " ".join(comments), []
        if found and (found[-1].what, found[-1].origins) == (what, origins):
            found[-1].lines.append(line)
        else:
            found.append(ExplainedLines(lines=[line], what=what, origins=origins))
    return found


def _origin(planned: PlannedRun, keys: Sequence[str]) -> Origin:
    """Return the first of the keys that is set; where none is, the last, with its default."""
    for key in keys:
        section, _, rest = key.partition(".")
        if rest and hasattr(planned.loaded.job, section):
            value: Any = planned.loaded.job
            origin = planned.loaded.origin_of(key)
        else:
            value, origin = planned.cluster.profile, planned.cluster.origins[section]
            if origin in planned.cluster.files:
                origin = f"{origin}, cluster {planned.cluster.name}"
        value = functools.reduce(getattr, key.split("."), value)
        if value is not None:
            break
    return Origin(key=key, value=msgspec.to_builtins(value), origin=origin or "default")


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
