"""Tables with a line for each run: speed, steps, phases, memory, time to accuracy, repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from hpcdist.base.table import (
    Column,
    Table,
    count,
    each,
    mean_interval,
    mean_sd,
    number,
    percent,
    size,
)
from hpcdist.base.text import decimals_for, format_number, format_percent, shown, time_unit
from hpcdist.summary.compare.sizes import one_of_each
from hpcdist.summary.figures.timing import OTHER
from hpcdist.summary.report.remarks import is_baseline, is_benchmark
from hpcdist.summary.values import RunSummary, TimeToAccuracy

_BASELINE_NOTE = "* baseline of the speed-up; efficiency is speed-up per rank, 100 % is ideal"
_SPEED_CAPTION = "Speed of all ranks together, mean ± sd over stretches of the run"
_STEP_CAPTION = "Time of one step, mean ± sd over all steps and ranks; what was learned; memory"
_STRAGGLING_NOTE = (
    "slowest to fastest rank: 1.20 (3 / 0) is rank 3 taking 1.20 times as long as rank 0 for its"
    " own part of a step"
)
_MIB = 2**20
_WHOLE_MIB = 100
_HUGE_LOSS = 1e6
_STATE_STYLES = {"done": "green", "failed": "red", "lost": "red", "running": "cyan"}
_PHASE_HEADERS = {
    "data_wait": "data\nwait",
    "host_to_device": "to\ndevice",
    "forward_backward": "forward\nbackward",
    "exposed_communication": "exposed\ncomm.",
    "optimizer": "opti-\nmizer",
    "checkpoint": "check-\npoint",
}


class Row(NamedTuple):
    """One run in the tables, and the number that ties its rows together."""

    number: int
    run: RunSummary


def gpus_column(size_of: Callable[[Any], Any]) -> Column[Any]:
    """Return the column of nodes and GPUs per node, sorted by all GPUs; `size_of(row)` has both."""
    return Column(
        "nodes\nx gpus",
        lambda row: (size_of(row).nodes, size_of(row).gpus_per_node),
        size,
        sort=lambda value: value[0] * value[1],
    )


_NUMBER: Column[Row] = Column("#", lambda row: row.number)
_SIZE = gpus_column(lambda row: row.run)


def speed_table(rows: Sequence[Row], *, has_speedups: bool = True, note: str = "") -> Table[Row]:
    """Return state and speed of each run; the speed against others only with `has_speedups`."""
    runs = [row.run for row in rows]
    is_scaled = has_speedups and any(run.speedup is not None for run in runs)
    is_trained = any(run.samples_per_s for run in runs) and not all(map(is_benchmark, runs))
    notes = [_BASELINE_NOTE, *([note] if note else [])] if is_scaled else []
    columns = _speed_columns(runs, has_speedups=has_speedups)
    return Table(_SPEED_CAPTION if is_trained else "", columns, rows, "\n".join(notes))


def _speed_columns(runs: Sequence[RunSummary], *, has_speedups: bool) -> list[Column[Row]]:
    variant: Column[Row] = Column("variant", lambda row: row.run.variant or "", align="left")
    columns: list[Column[Row]] = [
        _NUMBER,
        Column("run", lambda row: row.run.run, align="left"),
        *([variant] if any(run.variant for run in runs) else []),
        Column("state", lambda row: row.run.state, align="left", style=_state_style),
        _SIZE,
    ]
    if all(is_benchmark(run) for run in runs):  # they have tables of their own
        return columns
    if any(run.samples_per_s for run in runs):
        columns.append(Column("samples/s", lambda row: row.run.samples_per_s, mean_sd()))
    if has_speedups:
        columns += [
            Column(
                "speed-\nup",
                lambda row: row.run.speedup,
                number(2),
                is_marked=lambda row: is_baseline(row.run),
            ),
            Column("effic.", lambda row: row.run.efficiency, percent(), unit="%"),
        ]
    return columns


def _state_style(state: str | None) -> str:
    return _STATE_STYLES.get(state or "", "yellow")


def step_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield the time of a step, what was learned, and memory."""
    if stepped := _stepped(rows):
        yield Table(_STEP_CAPTION, _step_columns([row.run for row in stepped]), stepped)


def _stepped(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.run.step_time_s]


def _step_columns(runs: Sequence[RunSummary]) -> list[Column[Row]]:
    means = [run.step_time_s.mean for run in runs if run.step_time_s]
    unit_s, unit = time_unit(max(means))
    decimals = decimals_for([mean / unit_s for mean in means])

    def quantile(name: str) -> Callable[[Row], float | None]:
        return lambda row: getattr(row.run.step_time_s, name)

    in_unit = number(decimals, per=unit_s)
    return [
        _NUMBER,
        Column("step time", lambda row: row.run.step_time_s, mean_sd(per=unit_s), unit=unit),
        Column("median", quantile("p50"), in_unit, unit=unit),
        Column("p95", quantile("p95"), in_unit, unit=unit),
        Column("epochs", lambda row: row.run.epochs, count),
        Column("test\nloss", lambda row: row.run.final.loss, each(_loss)),
        Column("accuracy", lambda row: row.run.final.accuracy, percent(2), unit="%"),
        Column("peak mem.", lambda row: row.run.peak_rss_bytes, each(_mib), unit="MiB"),
        Column("re-\nstarts", lambda row: row.run.restarts),
    ]


def _loss(loss: float) -> str:
    """Format a loss; that of a training that diverged has any number of digits."""
    return f"{loss:.3g}" if abs(loss) >= _HUGE_LOSS else format_number(loss, 4)


def _mib(num_bytes: int) -> str:
    mib = num_bytes / _MIB
    return f"{mib:,.0f}" if mib >= _WHOLE_MIB else f"{mib:,.2f}"


def phase_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield what a step consists of, as it was recorded."""
    if stepped := _stepped(rows):
        runs = [row.run for row in stepped]
        note = _STRAGGLING_NOTE if any(run.slowest_rank for run in runs) else ""
        yield Table("Share of step time by phase, in %", _phase_columns(runs), stepped, note)


def _phase_columns(runs: Sequence[RunSummary]) -> list[Column[Row]]:
    phases = dict.fromkeys(phase for run in runs for phase in run.phase_s or {})
    # Phases in the order of a step, those of other workloads after them, the rest last.
    known = [phase for phase in _PHASE_HEADERS if phase in phases]
    unknown = [phase for phase in phases if phase not in {*_PHASE_HEADERS, OTHER}]

    def share(phase: str) -> Callable[[Row], float | None]:
        def value(row: Row) -> float | None:
            assert row.run.step_time_s is not None
            phase_s = (row.run.phase_s or {}).get(phase, 0.0)
            mean_s = row.run.step_time_s.mean
            return phase_s / mean_s if mean_s else None

        return value

    return [
        _NUMBER,
        *(
            Column(_PHASE_HEADERS.get(phase, shown(phase)), share(phase), percent())
            for phase in (*known, *unknown, OTHER)
        ),
        Column(
            "slowest to\nfastest rank",
            _straggling,
            each(lambda value: f"{value[0]:.2f} ({value[1]} / {value[2]})"),
        ),
    ]


def _straggling(row: Row) -> tuple[float, int, int] | None:
    """Return how many times as long the slowest rank takes as the fastest, and these two."""
    slowest, fastest = row.run.slowest_rank, row.run.fastest_rank
    if slowest is None or fastest is None or not fastest.own_time_s:
        return None
    return slowest.own_time_s / fastest.own_time_s, slowest.rank, fastest.rank


def memory_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield what model, gradients and optimizer hold."""
    if held := [row for row in rows if row.run.model_states]:
        yield Table("Memory of the rank that uses most, in MiB", _memory_columns(), held)


def _memory_columns() -> list[Column[Row]]:
    def states(kind: str) -> Callable[[Row], int]:
        return lambda row: getattr(row.run.model_states, f"{kind}_bytes")

    return [
        _NUMBER,
        Column("model\nstates", states("total"), each(_mib)),
        Column("para-\nmeters", states("parameter"), each(_mib)),
        Column("gra-\ndients", states("gradient"), each(_mib)),
        Column("opti-\nmizer", states("optimizer"), each(_mib)),
        Column("peak of\nprocess", lambda row: row.run.peak_rss_bytes, each(_mib)),
        Column("peak on\nGPU", lambda row: row.run.peak_cuda_bytes, each(_mib)),
    ]


def accuracy_tables(rows: Sequence[Row], *, is_asked: bool = False) -> Iterator[Table[Row]]:
    """Yield when runs reached an accuracy, where several runs were tested or one did not reach it;
    with `is_asked` also for one run that did."""
    tested = [row for row in rows if row.run.time_to_accuracy]
    reached = [row for row in tested if _accuracy(row).is_reached]
    if len(tested) > 1 or len(reached) < len(tested) or (is_asked and tested):
        target = format_percent(_accuracy(tested[0]).target, 1)
        caption = f"Time to {target} % test accuracy, from the first step, restarts included"
        yield Table(caption, _accuracy_columns(tested), tested)


def _accuracy_columns(rows: Sequence[Row]) -> list[Column[Row]]:
    times = [_accuracy(row).time_s or 0.0 for row in rows]
    by_id = {row.run.run: row.run for row in rows}

    def time(row: Row) -> float | str | None:
        return _accuracy(row).time_s if _accuracy(row).is_reached else "not reached"

    def against(row: Row) -> float | None:
        """Divide the mean time of the runs that its speed-up is against by its own."""
        baseline = [by_id[other] for other in row.run.compared_with if other in by_id]
        theirs = [run.time_to_accuracy for run in baseline if run.time_to_accuracy]
        times = [reached.time_s for reached in theirs if reached.time_s is not None]
        own_s = _accuracy(row).time_s
        if not own_s or not times or len(times) < len(row.run.compared_with):
            return None
        return sum(times) / len(times) / own_s

    return [
        _NUMBER,
        _SIZE,
        Column("time", time, number(decimals_for(times)), unit="s"),
        Column("steps", lambda row: _accuracy(row).step, count),
        Column("epochs", lambda row: _accuracy(row).epoch, count),
        Column("best", lambda row: _accuracy(row).best, percent(2), unit="%"),
        Column("times as\nfast", against, number(2), is_marked=lambda row: is_baseline(row.run)),
    ]


def _accuracy(row: Row) -> TimeToAccuracy:
    assert row.run.time_to_accuracy is not None
    return row.run.time_to_accuracy


def repeats_tables(rows: Sequence[Row]) -> Iterator[Table[RunSummary]]:
    """Yield a table with a line for each size that was run more than once, without those that are
    compared with other sizes."""
    if runs := one_of_each([row.run for row in rows if row.run.of_size is None]):
        caption = "Repeats, with the 95 % confidence interval of their mean"
        columns: list[Column[RunSummary]] = [
            gpus_column(lambda run: run),
            Column("runs", lambda run: run.repeats and run.repeats.num_runs),
            Column("samples/s", lambda run: run.repeats, mean_interval()),
        ]
        yield Table(caption, columns, runs)
