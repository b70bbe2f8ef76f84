"""What benchmarks measured as CSV: one line per size, pair of nodes, batch size, or way of loading.

Columns are called as the keys of the JSON; `benchmark` says which of them a line fills.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_origin

import msgspec
from msgspec import Struct

from hpcdist.base import table
from hpcdist.base.table import Column, Table
from hpcdist.bench.registry import BENCHMARKS
from hpcdist.summary.values import SCHEMA, RunSummary, Summary

_OF_RUN = ("run", "job", "state", "gpus_per_node", "world_size")
_KINDS = [kind for benchmark in BENCHMARKS for kind in benchmark.measurements.values()]


def to_benchmarks_csv(summary: Summary) -> str:
    """A header and one line per measurement, run by run; what a benchmark does not have is
    empty."""
    rows = [row for run in summary.runs for row in _rows(run)]
    parts = sorted({name for row in rows for name in row if name.startswith("parts_s.")})
    names = ["schema", *_OF_RUN, "benchmark", *_columns(), *parts]
    return table.to_csv(Table("", [Column(name, _reader(name)) for name in names], rows))


def _reader(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row.get(name)


def _columns() -> list[str]:
    """The fields of all kinds of measurements, each once."""
    names = [name for kind in _KINDS for name in _fields(kind)]
    return list(dict.fromkeys(names))


def _fields(kind: type[Struct], prefix: str = "") -> Iterator[str]:
    """With the fields of structs within; what keys a dict has, only the measurements tell."""
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            yield from _fields(field.type, f"{prefix}{field.name}.")
        elif get_origin(field.type) is not dict:
            yield f"{prefix}{field.name}"


def _rows(run: RunSummary) -> Iterator[dict[str, Any]]:
    head = {"schema": SCHEMA, **{name: getattr(run, name) for name in _OF_RUN}}
    for benchmark, result in run.benchmark_results:
        for kind, value in benchmark.measured(result):
            yield {**head, "benchmark": kind, **dict(_flat(msgspec.to_builtins(value)))}


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A pair's two nodes are one cell."""
    for key, one in value.items():
        if isinstance(one, Mapping):
            yield from _flat(one, f"{prefix}{key}.")
        elif isinstance(one, (list, tuple)):
            yield f"{prefix}{key}", " ".join(map(str, one))
        else:
            yield f"{prefix}{key}", one
