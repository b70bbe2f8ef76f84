"""What benchmarks measured as CSV: one line per size, pair of nodes, batch size, or way of loading.

Columns are called as the keys of the JSON; `benchmark` says which of them a line fills.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from hpcdist.base import table
from hpcdist.base.table import Column, Table
from hpcdist.bench.dataload.figures import LoadingCell, Setting, StepTime
from hpcdist.bench.inference.figures import Cell
from hpcdist.summary.figures.benchmark_values import PairFigures, SizeFigures
from hpcdist.summary.values import SCHEMA, RunSummary, Summary

_OF_RUN = ("run", "job", "state", "gpus_per_node", "world_size")
_KINDS: tuple[type[Struct], ...] = (SizeFigures, PairFigures, Cell, LoadingCell, StepTime)


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
    found: dict[str, None] = {}
    for kind in _KINDS:
        for name in kind.__struct_fields__:
            if name == "setting":
                found |= dict.fromkeys(f"setting.{key}" for key in Setting.__struct_fields__)
            elif name != "parts_s":
                found[name] = None
    return list(found)


def _rows(run: RunSummary) -> Iterator[dict[str, Any]]:
    head = {"schema": SCHEMA, **{name: getattr(run, name) for name in _OF_RUN}}
    for benchmark, value in _measured(run):
        cells = dict(_flat(msgspec.to_builtins(value)))
        yield {**head, "benchmark": benchmark, **cells}


def _measured(run: RunSummary) -> Iterator[tuple[str, Struct]]:
    if run.all_reduce:
        yield from (("all_reduce", size) for size in run.all_reduce.sizes)
        yield from (("pair", pair) for pair in run.all_reduce.pairs)
    if run.inference:
        yield from (("inference", cell) for cell in run.inference.cells)
    if run.loading:
        yield from (("loading", cell) for cell in run.loading.cells)
        yield from (("model_step", step) for step in run.loading.steps)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A pair's two nodes are one cell."""
    for key, one in value.items():
        if isinstance(one, Mapping):
            yield from _flat(one, f"{prefix}{key}.")
        elif isinstance(one, (list, tuple)):
            yield f"{prefix}{key}", " ".join(map(str, one))
        else:
            yield f"{prefix}{key}", one
