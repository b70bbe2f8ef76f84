"""The summary as CSV, for spreadsheets and data frames: a line per run.

Columns are called as the keys of the JSON, with dots between keys within keys: so units stand in
the headers, and numbers are not rounded. Lists have no column.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import get_args, get_origin

import msgspec
from msgspec import Struct

from hpcdist.base import table
from hpcdist.base.table import Column, Table
from hpcdist.runs.events import PHASES
from hpcdist.summary.figures.run import flatten
from hpcdist.summary.figures.shares import SHARES
from hpcdist.summary.figures.timing import OTHER
from hpcdist.summary.values import RunSummary, Summary, to_json


def to_csv(summary: Summary) -> str:
    """Return a header and one line per run, in order; unknown values are empty."""
    runs = to_json(summary)
    # Always the same, but for phases of the user's own.
    recorded = {phase for run in runs for phase in run["phase_s"] or {}}
    keys = {
        **dict.fromkeys(("parts_s", "lost", "shares"), SHARES),
        "phase_s": [*PHASES, *sorted(recorded - {*PHASES, OTHER}), OTHER],
    }
    names = [name for name in _fields(RunSummary, keys) if not name.startswith("benchmark.")]
    columns = [Column(name, operator.methodcaller("get", name)) for name in ["schema", *names]]
    return table.to_csv(Table("", columns, [flatten(run) for run in runs]))


def _fields(
    kind: type[Struct], keys: Mapping[str, Iterable[str]], prefix: str = ""
) -> Iterator[str]:
    """Yield the names of fields that are no lists, also in structs within; of a dict, the keys that
    `keys` has by its name."""
    for field in msgspec.structs.fields(kind):
        name = f"{prefix}{field.name}"
        types = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
        inner = next((of for of in types if isinstance(of, type) and issubclass(of, Struct)), None)
        origins = {get_origin(each) for each in types}
        if inner is not None:
            yield from _fields(inner, keys, f"{name}.")
        elif dict in origins:
            yield from (f"{name}.{key}" for key in keys.get(field.name, ()))
        elif list not in origins:
            yield name
