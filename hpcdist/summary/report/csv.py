"""The summary as CSV, for spreadsheets and data frames: a line per run, or per measurement.

Columns are called as the keys of the JSON, with dots between keys within keys: so units stand in
the headers, and numbers are not rounded.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_origin

import msgspec
from msgspec import Struct

from hpcdist.base import table
from hpcdist.base.table import Column, Table
from hpcdist.bench.registry import BENCHMARKS
from hpcdist.runs.events import PHASES
from hpcdist.summary.figures.run import flatten
from hpcdist.summary.figures.shares import SHARES
from hpcdist.summary.figures.timing import OTHER
from hpcdist.summary.values import SCHEMA, Summary, to_json

_BEFORE_PHASES = (
    *("schema", "run", "job", "comparison", "variant", "state", "scheduler", "cluster", "image"),
    *("ran_with.code", "ran_with.device_model", "ran_with.torch"),
    *("configuration", "nodes", "gpus_per_node", "world_size", "num_cpus"),
    *("samples_per_s.mean", "samples_per_s.sd", "speedup", "efficiency"),
    *("repeats.num_runs", "repeats.mean", "repeats.interval.low", "repeats.interval.high"),
    *("of_size.scaling", "of_size.strategy", "of_size.num_runs", "of_size.differs_from_baseline"),
    *("of_size.speedup.mean", "of_size.speedup.interval.low", "of_size.speedup.interval.high"),
    *("of_size.efficiency.mean", "of_size.speedup.over", "samples_per_step", "warm_up_steps"),
    *("step_time_s.mean", "step_time_s.sd", "step_time_s.p50", "step_time_s.p95"),
)
_AFTER_PHASES = (
    *(f"parts_s.{share}" for share in SHARES),
    *("losses.efficiency", *(f"losses.lost.{share}" for share in SHARES), "losses.largest"),
    *("straggler.rank", "straggler.node", "straggler.host", "straggler.longer_s"),
    *("steps", "epochs", "train_loss", "learning_rate", "final.loss", "final.accuracy"),
    *(
        "time_to_accuracy.goal",
        "time_to_accuracy.target",
        "time_to_accuracy.is_reached",
        "time_to_accuracy.time_s",
    ),
    *("time_to_accuracy.step", "time_to_accuracy.epoch", "time_to_accuracy.samples"),
    *("peak_rss_bytes", "peak_cuda_bytes", "model_states.total_bytes"),
    *("restarts", "lost_steps", "lost_time_s", "waited_s"),
    *("slowest_rank.rank", "slowest_rank.host", "slowest_rank.own_time_s"),
    *("fastest_rank.rank", "fastest_rank.host", "fastest_rank.own_time_s"),
    *("accounting.queue_wait_s", "accounting.elapsed_s", "accounting.max_rss_bytes"),
    *("accounting.energy_j", "accounting.exit_code"),
    *("cost.held_s", "cost.gpu_hours", "cost.cpu_hours", "cost.lost_s", "cost.lost_share"),
    *("cost.price", "cost.waiting_share", "usage.gpu_utilization", "usage.max_gpu_memory_bytes"),
    *("usage.gpu_power_w", "usage.energy_j", "usage.cpus_busy", "usage.num_cpus"),
    *("verdict.kind", "verdict.rank", "verdict.host", "verdict.exit_code", "verdict.exception"),
    *("verdict.message", "not_compared_because", "path"),
)
_OF_RUN = ("run", "job", "state", "gpus_per_node", "world_size")
_KINDS = [kind for benchmark in BENCHMARKS for kind in benchmark.measurements.values()]


def to_csv(summary: Summary) -> str:
    """Return a header and one line per run, in order; unknown values are empty."""
    runs = to_json(summary)
    # Always the same, but for phases of the user's own.
    recorded = {phase for run in runs for phase in run["phase_s"] or {}}
    phases = [*PHASES, *sorted(recorded - {*PHASES, OTHER}), OTHER]
    names = [*_BEFORE_PHASES, *(f"phase_s.{phase}" for phase in phases), *_AFTER_PHASES]
    return _to_csv([flatten(run) for run in runs], names)


def to_benchmarks_csv(summary: Summary) -> str:
    """Return a header and one line per measurement of a benchmark, run by run; `benchmark` says
    what was measured, and other columns are empty."""
    rows = []
    for run in summary.runs:
        head = {"schema": SCHEMA, **{name: getattr(run, name) for name in _OF_RUN}}
        for benchmark, result in run.benchmark_results:
            for kind, value in benchmark.measured(result):
                row = {**head, "benchmark": kind}
                for name, cell in flatten(msgspec.to_builtins(value)).items():
                    is_pair = isinstance(cell, (list, tuple))  # two nodes are one cell
                    row[name] = " ".join(map(str, cell)) if is_pair else cell
                rows.append(row)
    fields = dict.fromkeys(name for kind in _KINDS for name in _fields(kind))
    of_dicts = sorted({name for row in rows for name in row if name.startswith("parts_s.")})
    return _to_csv(rows, ["schema", *_OF_RUN, "benchmark", *fields, *of_dicts])


def _to_csv(rows: Sequence[dict[str, Any]], names: Iterable[str]) -> str:
    columns = [Column(name, operator.methodcaller("get", name)) for name in names]
    return table.to_csv(Table("", columns, rows))


def _fields(kind: type[Struct], prefix: str = "") -> Iterator[str]:
    """Yield the names of fields, also in structs within; the keys of a dict are not known before it
    is."""
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            yield from _fields(field.type, f"{prefix}{field.name}.")
        elif get_origin(field.type) is not dict:
            yield f"{prefix}{field.name}"
