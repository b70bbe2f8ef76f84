"""Tables with a line for each run: speed, steps, phases, memory, resources, and time to a goal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from hpcdist.base.plotting import long_unit
from hpcdist.base.table import Column, Table, count, each, mean_interval, number, percent
from hpcdist.base.table import size as nodes_and_gpus
from hpcdist.base.text import (
    decimals_for,
    format_number,
    format_percent,
    shown,
    time_unit,
)
from hpcdist.summary.compare.groups import place_of
from hpcdist.summary.figures.timing import OTHER
from hpcdist.summary.report.remarks import is_benchmark
from hpcdist.summary.values import RunSummary, TimeToAccuracy

_SETTINGS_COLUMNS = 2
_MIB = 2**20
_WH_J = 3600.0
_WHOLE_MIB = 100
_HUGE_LOSS = 1e6
_STATE_STYLES = {"done": "green", "failed": "red", "lost": "red", "running": "cyan"}
_PHASE_HEADERS = {
    "data_wait": "data\nwait",
    "host_to_device": "to\ndevice",
    "forward_backward": "forward\nbackward",
    "exposed_communication": "wait for\nranks",
    "optimizer": "opti-\nmizer",
    "checkpoint": "check-\npoint",
}


class Row(NamedTuple):
    """One run in the tables, and the number that ties its rows together."""

    number: int
    run: RunSummary


def read(path: str) -> Callable[[Any], Any]:
    """Return what reads a figure of a row's run, such as `usage.energy_j`; None where a part of the
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
        nodes_and_gpus,
    )


_NUMBER: Column[Row] = Column("#", lambda row: row.number)
_SIZE = gpus_column(lambda row: row.run)


def run_table(rows: Sequence[Row]) -> Table[Row]:
    """Return state and speed of each run, and in what they differ."""
    texts: dict[str, Callable[[Row], str]] = {
        "cluster": lambda row: place_of(row.run),
        "image": lambda row: row.run.image or "",
        "variant": lambda row: row.run.variant or "",
    }
    # Benchmarks have tables of their own.
    has_rates = any(row.run.samples_per_s and not is_benchmark(row.run) for row in rows)
    rates: Column[Row] = Column("samples/s", read("samples_per_s"), mean_interval())
    columns: list[Column[Row]] = [
        _NUMBER,
        Column("run", lambda row: row.run.run, align="left"),
        *(
            Column(header, text, align="left")
            for header, text in texts.items()
            if len({text(row) for row in rows}) > 1
        ),
        *settings_columns(rows),
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


def settings_columns(rows: Sequence[Any]) -> Iterator[Column[Any]]:
    """Yield a column for each setting in which runs differ that are therefore not compared; what
    finds no room stands in a last one. Each row has a `run`."""
    keys = list(dict.fromkeys(key for row in rows for key in row.run.differs_in))

    def values(*names: str) -> Callable[[Any], str]:
        return lambda row: ", ".join(shown(row.run.differs_in.get(name, "")) for name in names)

    for own in [*((key,) for key in keys[:_SETTINGS_COLUMNS]), tuple(keys[_SETTINGS_COLUMNS:])]:
        words = [key.rpartition(".")[2] for key in own]
        header = ",\n".join(words) if len(words) > 1 else "".join(words).replace("_", "\n")
        if own:
            yield Column("\n".join(map(shown, header.split("\n"))), values(*own), align="left")


def step_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    stepped = [row for row in rows if row.run.step_time_s]
    if not stepped:
        return
    means = [row.run.step_time_s.mean for row in stepped if row.run.step_time_s]
    unit_s, unit = time_unit(max(means))
    in_unit = number(decimals_for([mean / unit_s for mean in means]), per=unit_s)

    def loss(value: float) -> str:  # that of a training that diverged has any number of digits
        return f"{value:.3g}" if abs(value) >= _HUGE_LOSS else format_number(value, 4)

    columns: list[Column[Row]] = [
        _NUMBER,
        Column("step time", read("step_time_s.mean"), in_unit, unit=unit),
        Column("sd", read("step_time_s.sd"), in_unit, unit=unit),
        Column("median", read("step_time_s.p50"), in_unit, unit=unit),
        Column("p95", read("step_time_s.p95"), in_unit, unit=unit),
        Column("epochs", read("epochs"), count),
        Column("test\nloss", read("final.loss"), each(loss)),
        Column("accuracy", read("final.accuracy"), percent(2), unit="%"),
        Column("peak mem.", read("peak_rss_bytes"), each(_mib), unit="MiB"),
        Column("re-\nstarts", read("restarts")),
    ]
    caption = "Time of one step, mean and sd of all steps and ranks; what was learned; memory"
    yield Table(caption, known(columns, stepped), stepped)


def _mib(num_bytes: int) -> str:
    mib = num_bytes / _MIB
    return f"{mib:,.0f}" if mib >= _WHOLE_MIB else f"{mib:,.2f}"


def phase_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield what a step consists of, as it was recorded."""
    stepped = [row for row in rows if row.run.step_time_s]
    phases = dict.fromkeys(phase for row in stepped for phase in row.run.phase_s or {})
    if not phases:
        return
    # Phases in the order of a step, those of other workloads after them, the rest last.
    ordered = [*(phase for phase in _PHASE_HEADERS if phase in phases)]
    ordered += [phase for phase in phases if phase not in {*ordered, OTHER}]
    unit_s, unit = time_unit(
        max(row.run.step_time_s.mean for row in stepped if row.run.step_time_s)
    )
    times = [time_s / unit_s for row in stepped for time_s in (row.run.phase_s or {}).values()]
    in_unit = number(decimals_for(times), per=unit_s)

    def time(phase: str) -> Callable[[Row], float]:
        return lambda row: (row.run.phase_s or {}).get(phase, 0.0)

    headers = {phase: _PHASE_HEADERS.get(phase, shown(phase)) for phase in (*ordered, OTHER)}
    columns: list[Column[Row]] = [
        _NUMBER,
        *(Column(header, time(phase), in_unit) for phase, header in headers.items()),
    ]
    caption = f"Mean time of a step by phase, as recorded, in {unit}"
    yield Table(caption, known(columns, stepped), stepped)


def memory_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield what model, gradients and optimizer hold."""
    headers = {
        "model\nstates": "model_states.total_bytes",
        "para-\nmeters": "model_states.parameter_bytes",
        "gra-\ndients": "model_states.gradient_bytes",
        "opti-\nmizer": "model_states.optimizer_bytes",
        "peak of\nprocess": "peak_rss_bytes",
        "peak on\nGPU": "peak_cuda_bytes",
    }
    if held := [row for row in rows if row.run.model_states]:
        columns = [Column(header, read(path), each(_mib)) for header, path in headers.items()]
        caption = "Memory of the rank that uses most, in MiB"
        yield Table(caption, [_NUMBER, *known(columns, held)], held)


def resource_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield one table of what runs held, used and cost, where something is known."""

    def wide(per: float = 1.0, *, most: int = 2) -> Any:
        return number(per=per, most=most, is_wide=True)

    def time(header: str, path: str) -> Column[Row]:
        unit_s, unit = long_unit(max((read(path)(row) or 0.0 for row in rows), default=0.0))
        return Column(header, read(path), wide(unit_s, most=1), unit=unit)

    def busy_cpus(row: Row) -> str | None:
        usage = row.run.usage
        if not usage or usage.cpus_busy is None:
            return None
        of_all = "" if usage.num_cpus is None else f" of {usage.num_cpus:,.4g}"
        return f"{usage.cpus_busy:,.1f}{of_all}"

    of_gpus: list[Column[Row]] = [
        Column("GPU\nbusy", read("usage.gpu_utilization"), percent(), unit="%"),
        Column("GPU mem.", read("usage.max_gpu_memory_bytes"), each(_mib), unit="MiB"),
        Column("power", read("usage.gpu_power_w"), wide(most=0), unit="W"),
        Column("energy", read("usage.energy_j"), wide(_WH_J), unit="Wh"),
    ]
    columns: list[Column[Row]] = [
        time("queue\nwait", "accounting.queue_wait_s"),
        time("run\ntime", "cost.held_s"),
        Column("GPU-\nhours", read("cost.gpu_hours"), wide(most=4)),
        Column("CPU-\nhours", read("cost.cpu_hours"), wide(most=4)),
        Column("price", read("cost.price"), wide(most=4)),
        Column("restarts (%\nof run time)", read("cost.lost_share"), percent()),
        *of_gpus,
        Column("CPUs\nbusy", busy_cpus),
        # What the scheduler measured itself.
        Column("MaxRSS", read("accounting.max_rss_bytes"), each(_mib), unit="MiB"),
    ]
    if found := known(columns, rows):
        of_one = "; power of a GPU; memory of the fullest GPU" if known(of_gpus, rows) else ""
        yield Table(f"Resources: means over time{of_one}", [_NUMBER, *found], rows)


def accuracy_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield when runs reached an accuracy or a loss, where the user asked, several runs were tested
    or one did not reach it."""
    tested = [row for row in rows if row.run.time_to_accuracy]
    goals = [row.run.time_to_accuracy for row in tested if row.run.time_to_accuracy]
    is_told = len(goals) > 1 or any(goal.is_asked or not goal.is_reached for goal in goals)
    if not goals or not is_told:
        return

    def time(row: Row) -> float | str | None:
        goal = row.run.time_to_accuracy
        return goal.time_s if goal and goal.is_reached else "not reached"

    of_best = percent(2) if goals[0].goal == "accuracy" else each("{:.4g}".format)
    unit = "%" if goals[0].goal == "accuracy" else ""
    decimals = decimals_for([goal.time_s or 0.0 for goal in goals])
    columns: list[Column[Row]] = [
        _NUMBER,
        _SIZE,
        Column("time", time, number(decimals), unit="s"),
        Column("samples", read("time_to_accuracy.samples"), number(0)),
        Column("steps", read("time_to_accuracy.step"), count),
        Column("epochs", read("time_to_accuracy.epoch"), count),
        Column("best", read("time_to_accuracy.best"), of_best, unit=unit),
    ]
    caption = f"Time to {goal_text(goals[0])}, from the first step, restarts included"
    yield Table(caption, known(columns, tested), tested)


def goal_text(reached: TimeToAccuracy) -> str:
    """`97.0 % test accuracy`, `a test loss of 0.5`, `a training loss of 0.5`."""
    if reached.goal != "accuracy":
        return f"a {'test' if reached.goal == 'loss' else 'training'} loss of {reached.target:g}"
    return f"{format_percent(reached.target, 1)} % test accuracy"
