"""Tables with a line for each run: speed, steps, phases, memory, resources, and time to a goal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from hpcdist.base.plotting import long_unit
from hpcdist.base.table import Column, Table, each, mean_interval, number, percent
from hpcdist.base.text import (
    decimals_for,
    format_number,
    format_percent,
    shown,
    time_unit,
)
from hpcdist.summary.compare.groups import place_of
from hpcdist.summary.values import RunSummary, TimeToAccuracy

_MIB = 2**20
_WHOLE_MIB = 100
_HUGE_LOSS = 1e6
_STATE_STYLES = {"done": "green", "failed": "red", "lost": "red", "running": "cyan"}


class Row(NamedTuple):
    """One run in the tables, and the number that ties its rows together."""

    number: int
    run: RunSummary


def read(path: str) -> Callable[[Any], Any]:
    """Return what reads a figure of a row's run, such as `usage.num_cpus`; None where a part of the
    path is not known."""

    def value(row: Any) -> Any:
        found = row.run
        for name in path.split("."):
            found = getattr(found, name, None)
        return found

    return value


def known(columns: Iterable[Column[Any]], rows: Sequence[Any]) -> list[Column[Any]]:
    """Return the columns that have a value in some row."""
    return [column for column in columns if any(column.value(row) is not None for row in rows)]


def gpus_column(size_of: Callable[[Any], Any]) -> Column[Any]:
    """Return the column of nodes and GPUs per node; `size_of(row)` has both."""
    return Column(
        "nodes\nx gpus",
        lambda row: (size_of(row).nodes, size_of(row).gpus_per_node),
        each(lambda size: f"{size[0]} x {size[1]}"),
    )


_NUMBER: Column[Row] = Column("#", lambda row: row.number)
_SIZE = gpus_column(lambda row: row.run)


def run_table(rows: Sequence[Row]) -> Table[Row]:
    """Return state and speed of each run, and in what they differ."""
    texts: dict[str, Callable[[Row], str]] = {
        "cluster": lambda row: place_of(row.run),
        "image": lambda row: row.run.image or "",
        "variant": lambda row: row.run.variant or "",
        "settings": lambda row: shown(row.run.settings_text),
    }
    # Benchmarks have tables of their own.
    has_rates = any(row.run.samples_per_s and row.run.benchmark is None for row in rows)
    rates: Column[Row] = Column("samples/s", read("samples_per_s"), mean_interval())
    columns: list[Column[Row]] = [
        _NUMBER,
        Column("run", lambda row: row.run.run, align="left"),
        *(
            Column(header, text, align="left")
            for header, text in texts.items()
            if len({text(row) for row in rows}) > 1
        ),
        Column(
            "state",
            lambda row: row.run.state,
            align="left",
            style=lambda state: _STATE_STYLES.get(state or "", "yellow"),
        ),
        _SIZE,
        *([rates] if has_rates else []),
    ]
    caption = "Speed of all ranks together, mean ± 95 % interval over equal parts of the run"
    return Table(caption if has_rates else "", columns, rows)


def step_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield times of steps, what was learned, and when a goal that was asked for was reached."""
    stepped = [row for row in rows if row.run.step_time_s]
    if not stepped:
        return
    means = [row.run.step_time_s.mean for row in stepped if row.run.step_time_s]
    unit_s, unit = time_unit(max(means))
    in_unit = number(decimals_for([mean / unit_s for mean in means]), per=unit_s)
    goals = [goal for row in rows if (goal := row.run.time_to_accuracy)]
    to_goal = number(decimals_for([goal.time_s or 0.0 for goal in goals]))

    def loss(value: float) -> str:  # that of a training that diverged has any number of digits
        return f"{value:.3g}" if abs(value) >= _HUGE_LOSS else format_number(value, 4)

    def time(row: Row) -> float | str | None:
        goal = row.run.time_to_accuracy
        return None if goal is None else goal.time_s if goal.is_reached else "not reached"

    columns: list[Column[Row]] = [
        _NUMBER,
        Column("step time", read("step_time_s.mean"), in_unit, unit=unit),
        Column("sd", read("step_time_s.sd"), in_unit, unit=unit),
        Column("median", read("step_time_s.p50"), in_unit, unit=unit),
        Column("p95", read("step_time_s.p95"), in_unit, unit=unit),
        Column("epochs", read("epochs"), number(0)),
        Column("test\nloss", read("final.loss"), each(loss)),
        Column("accuracy", read("final.accuracy"), percent(2), unit="%"),
        Column("time to\nthe goal", time, to_goal, unit="s"),
        Column("samples\nto it", read("time_to_accuracy.samples"), number(0)),
        Column("peak mem.", read("peak_rss_bytes"), each(_mib), unit="MiB"),
        Column("restarts", read("restarts")),
    ]
    caption = "Time of one step, mean and sd of all steps and ranks; what was learned; memory"
    aim = f"; the goal is {goal_text(goals[0])}, from the first step on" if goals else ""
    yield Table(f"{caption}{aim}", known(columns, stepped), stepped)


def _mib(num_bytes: int) -> str:
    mib = num_bytes / _MIB
    return f"{mib:,.0f}" if mib >= _WHOLE_MIB else f"{mib:,.2f}"


def memory_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield what model, gradients and optimizer hold."""
    headers = {
        "model\nstates": "model_states.total_bytes",
        "parameters": "model_states.parameter_bytes",
        "gradients": "model_states.gradient_bytes",
        "optimizer": "model_states.optimizer_bytes",
        "peak of\nprocess": "peak_rss_bytes",
        "peak on\nGPU": "peak_cuda_bytes",
    }
    if held := [row for row in rows if row.run.model_states]:
        columns = [Column(header, read(path), each(_mib)) for header, path in headers.items()]
        yield Table("Memory of the rank that uses most, in MiB", [_NUMBER, *columns], held)


def resource_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield one table of what runs held, used and cost, where something is known."""
    held_s, held = long_unit(max((read("cost.held_s")(row) or 0.0 for row in rows), default=0.0))
    columns: list[Column[Row]] = [
        Column("queue\nwait", read("accounting.queue_wait_s"), number(1), unit="s"),
        Column("run\ntime", read("cost.held_s"), number(1, per=held_s), unit=held),
        Column("GPU-\nhours", read("cost.gpu_hours"), number()),
        Column("CPU-\nhours", read("cost.cpu_hours"), number()),
        Column("price", read("cost.price"), number()),
        Column("restarts (%\nof run time)", read("cost.lost_share"), percent()),
        Column("GPU\nbusy", read("usage.gpu_utilization"), percent(), unit="%"),
        Column("GPU mem.", read("usage.max_gpu_memory_bytes"), each(_mib), unit="MiB"),
        Column("CPUs\nbusy", read("usage.cpus_busy"), number(1)),
        Column("of\nCPUs", read("usage.num_cpus"), each("{:,.4g}".format)),
    ]
    if found := known(columns, rows):
        caption = "Resources: means over time; memory of the fullest GPU"
        yield Table(caption, [_NUMBER, *found], rows)


def goal_text(reached: TimeToAccuracy) -> str:
    """`97.0 % test accuracy`, `a test loss of 0.5`, `a training loss of 0.5`."""
    if reached.goal != "accuracy":
        return f"a {'test' if reached.goal == 'loss' else 'training'} loss of {reached.target:g}"
    return f"{format_percent(reached.target, 1)} % test accuracy"
