"""Tables with a line for each run: speed, steps, phases, memory, resources, accuracy, repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from hpcdist.base.plotting import long_unit
from hpcdist.base.statistics import Measure, Ratio, differs, measure, ratios
from hpcdist.base.table import (
    Column,
    Format,
    Table,
    count,
    each,
    mean_interval,
    mean_sd,
    number,
    percent,
    size,
)
from hpcdist.base.text import (
    decimals_for,
    format_number,
    format_percent,
    interval_text,
    shown,
    time_unit,
)
from hpcdist.summary.compare.cells import size as size_of_run
from hpcdist.summary.compare.groups import place_of
from hpcdist.summary.figures.timing import OTHER
from hpcdist.summary.report.remarks import is_benchmark
from hpcdist.summary.values import RunSummary, TimeToAccuracy

BASELINE_NOTE = "* baseline of the speed-up; efficiency is speed-up per rank, 100 % is ideal"
_SPEED_CAPTION = "Speed of all ranks together, mean ± 95 % interval over equal parts of the run"
_STEP_CAPTION = "Time of one step, mean ± sd over all steps and ranks; what was learned; memory"
_STRAGGLING_NOTE = (
    "slowest to fastest rank: 1.20 (3 / 0) means that rank 3 takes 1.20 times as long "
    "as rank 0 for its own part of a step"
)
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


def interval_note(speedups: Iterable[Ratio | None]) -> str:
    """Say what the ± of a table of speed-ups is; nothing where no spread is known."""
    judged = [speedup for speedup in speedups if speedup and speedup.over]
    if not judged:
        return ""
    note = "±: 95 % confidence interval over repeated runs"
    if any(speedup.over == "windows" for speedup in judged):
        note = (
            "±: 95 % confidence interval over equal parts of one run; it does not include how runs "
            "differ from each other, which --repeat 3 shows"
        )
    if len(judged) > 1:
        note += "\nthat of a speed-up is wider, as several are compared at once (Holm's method)"
    return note


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


def _image(image: str | None, images: Sequence[str | None]) -> str:
    """Return the last part of an image's name; all of it where another has the same last part."""

    def last(one: str | None) -> str:
        return (one or "").partition(" (")[0].rpartition("/")[2]

    is_unique = sum(last(one) == last(image) for one in images) == 1
    return last(image) if is_unique else image or ""


def _is_baseline(row: Row) -> bool:
    return row.run.run in row.run.compared_with


NUMBER = "#"
"""Header of the column that ties rows to runs."""
_NUMBER: Column[Row] = Column(NUMBER, lambda row: row.number)
_SIZE = gpus_column(lambda row: row.run)


def run_table(rows: Sequence[Row]) -> Table[Row]:
    """Return state and speed of each run."""
    runs = [row.run for row in rows]
    are_benchmarks = all(map(is_benchmark, runs))  # they have tables of their own
    has_rates = not are_benchmarks and any(run.samples_per_s for run in runs)
    columns: list[Column[Row]] = [_NUMBER, Column("run", lambda row: row.run.run, align="left")]
    if len({place_of(run) for run in runs}) > 1:
        columns.append(Column("cluster", lambda row: place_of(row.run), align="left"))
    if len(images := list(dict.fromkeys(run.image for run in runs))) > 1:
        columns.append(Column("image", lambda row: _image(row.run.image, images), align="left"))
    if any(run.variant for run in runs):
        columns.append(Column("variant", lambda row: row.run.variant or "", align="left"))
    columns += settings_columns(rows)
    columns += [
        Column(
            "state",
            lambda row: row.run.state,
            align="left",
            style=lambda state: _STATE_STYLES.get(state or "", "yellow"),
        ),
        _SIZE,
    ]
    if has_rates:
        columns.append(Column("samples/s", lambda row: row.run.samples_per_s, mean_interval()))
    return Table(_SPEED_CAPTION if has_rates else "", columns, rows)


def settings_columns(rows: Sequence[Any]) -> Iterator[Column[Any]]:
    """Yield a column for each setting in which runs differ that are therefore not compared; what
    finds no room stands in a last one. Each row has a `run`."""
    keys = list(dict.fromkeys(key for row in rows for key in row.run.differs_in))

    def values(*names: str) -> Callable[[Any], str]:
        return lambda row: ", ".join(shown(row.run.differs_in.get(name, "")) for name in names)

    for key in keys[:_SETTINGS_COLUMNS]:
        words = key.rpartition(".")[2].split("_")
        yield Column("\n".join(map(shown, words)), values(key), align="left")
    if others := keys[_SETTINGS_COLUMNS:]:
        names = ",\n".join(key.rpartition(".")[2] for key in others[:_SETTINGS_COLUMNS])
        more = f",\n{len(others) - _SETTINGS_COLUMNS} more" if others[_SETTINGS_COLUMNS:] else ""
        yield Column(names + more, values(*others[:_SETTINGS_COLUMNS]), align="left")


def step_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    means = [row.run.step_time_s.mean for row in rows if row.run.step_time_s]
    if not means:
        return
    unit_s, unit = time_unit(max(means))
    in_unit = number(decimals_for([mean / unit_s for mean in means]), per=unit_s)

    def loss(value: float) -> str:  # that of a training that diverged has any number of digits
        return f"{value:.3g}" if abs(value) >= _HUGE_LOSS else format_number(value, 4)

    def quantile(name: str) -> Callable[[Row], float | None]:
        return lambda row: getattr(row.run.step_time_s, name)

    columns = [
        _NUMBER,
        Column("step time", lambda row: row.run.step_time_s, mean_sd(per=unit_s), unit=unit),
        Column("median", quantile("p50"), in_unit, unit=unit),
        Column("p95", quantile("p95"), in_unit, unit=unit),
        Column("epochs", lambda row: row.run.epochs, count),
        Column("test\nloss", lambda row: row.run.final.loss, each(loss)),
        Column("accuracy", lambda row: row.run.final.accuracy, percent(2), unit="%"),
        Column("peak mem.", lambda row: row.run.peak_rss_bytes, each(_mib), unit="MiB"),
        Column("re-\nstarts", lambda row: row.run.restarts),
    ]
    yield Table(_STEP_CAPTION, columns, [row for row in rows if row.run.step_time_s])


def _mib(num_bytes: int) -> str:
    mib = num_bytes / _MIB
    return f"{mib:,.0f}" if mib >= _WHOLE_MIB else f"{mib:,.2f}"


def phase_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield what a step consists of, as it was recorded."""
    stepped = [row for row in rows if row.run.step_time_s]
    if not stepped:
        return
    phases = dict.fromkeys(phase for row in stepped for phase in row.run.phase_s or {})
    # Phases in the order of a step, those of other workloads after them, the rest last.
    known = [phase for phase in _PHASE_HEADERS if phase in phases]
    unknown = [phase for phase in phases if phase not in {*_PHASE_HEADERS, OTHER}]

    unit_s, unit = time_unit(
        max(row.run.step_time_s.mean for row in stepped if row.run.step_time_s)
    )
    times = [time_s / unit_s for row in stepped for time_s in (row.run.phase_s or {}).values()]
    in_unit = number(decimals_for(times), per=unit_s)

    def time(phase: str) -> Callable[[Row], float]:
        return lambda row: (row.run.phase_s or {}).get(phase, 0.0)

    def straggling(row: Row) -> tuple[float, int, int] | None:
        """Return how many times as long the slowest rank takes as the fastest, and these two."""
        slowest, fastest = row.run.slowest_rank, row.run.fastest_rank
        if slowest is None or fastest is None or not fastest.own_time_s:
            return None
        return slowest.own_time_s / fastest.own_time_s, slowest.rank, fastest.rank

    ordered = (*known, *unknown, OTHER)
    of_two = each(lambda value: f"{value[0]:.2f} ({value[1]} / {value[2]})")
    columns = [
        _NUMBER,
        *(
            Column(_PHASE_HEADERS.get(phase, shown(phase)), time(phase), in_unit)
            for phase in ordered
        ),
        Column("slowest to\nfastest rank", straggling, of_two),
    ]
    note = _STRAGGLING_NOTE if any(row.run.slowest_rank for row in stepped) else ""
    yield Table(f"Mean time of a step by phase, as recorded, in {unit}", columns, stepped, note)


def memory_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield what model, gradients and optimizer hold."""

    def states(kind: str) -> Callable[[Row], int]:
        return lambda row: getattr(row.run.model_states, f"{kind}_bytes")

    if held := [row for row in rows if row.run.model_states]:
        columns = [
            _NUMBER,
            Column("model\nstates", states("total"), each(_mib)),
            Column("para-\nmeters", states("parameter"), each(_mib)),
            Column("gra-\ndients", states("gradient"), each(_mib)),
            Column("opti-\nmizer", states("optimizer"), each(_mib)),
            Column("peak of\nprocess", lambda row: row.run.peak_rss_bytes, each(_mib)),
            Column("peak on\nGPU", lambda row: row.run.peak_cuda_bytes, each(_mib)),
        ]
        yield Table("Memory of the rank that uses most, in MiB", columns, held)


def resource_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield one table of what runs held, used and cost, where something is known; columns without a
    value are left out."""

    def of(part: str, name: str) -> Callable[[Row], Any]:
        """Read a figure of a part of the summary, which a run may not have."""
        return lambda row: getattr(getattr(row.run, part), name, None)

    def numbers(per: float = 1.0, *, most: int = 2) -> Format:
        return number(per=per, most=most, is_wide=True)

    def time(header: str, read: Callable[[Row], Any]) -> Column[Row]:
        unit_s, unit = long_unit(max((read(row) or 0.0 for row in rows), default=0.0))
        return Column(header, read, numbers(unit_s, most=1), unit=unit)

    def busy_cpus(row: Row) -> tuple[float, float | None] | None:
        usage = row.run.usage
        return None if not usage or usage.cpus_busy is None else (usage.cpus_busy, usage.num_cpus)

    def busy_of_all(cpus: tuple[float, float | None]) -> str:
        busy, num_cpus = cpus
        return f"{busy:,.1f}" + ("" if num_cpus is None else f" of {num_cpus:,.4g}")

    of_gpus = [
        Column("GPU\nbusy", of("usage", "gpu_utilization"), percent(), unit="%"),
        Column("GPU mem.", of("usage", "max_gpu_memory_bytes"), each(_mib), unit="MiB"),
        Column("power", of("usage", "gpu_power_w"), numbers(most=0), unit="W"),
        Column("energy", of("usage", "energy_j"), numbers(_WH_J), unit="Wh"),
    ]
    columns = [
        time("queue\nwait", of("accounting", "queue_wait_s")),
        time("run\ntime", of("cost", "held_s")),
        Column("GPU-\nhours", of("cost", "gpu_hours"), numbers(most=4)),
        Column("CPU-\nhours", of("cost", "cpu_hours"), numbers(most=4)),
        Column("price", of("cost", "price"), numbers(most=4)),
        Column("restarts (%\nof run time)", of("cost", "lost_share"), percent()),
        *of_gpus,
        Column("CPUs\nbusy", busy_cpus, each(busy_of_all)),
        # What the scheduler measured itself.
        Column("MaxRSS", of("accounting", "max_rss_bytes"), each(_mib), unit="MiB"),
        Column("job's en-\nergy", of("accounting", "energy_j"), numbers(_WH_J), unit="Wh"),
    ]
    known = [column for column in columns if any(column.value(row) is not None for row in rows)]
    has_gpus = any(column in of_gpus for column in known)
    if known:
        of_one = "; power of a GPU; memory of the fullest GPU" if has_gpus else ""
        caption = f"Resources: means over time{of_one}"
        yield Table(caption, [_NUMBER, *known], rows)


def accuracy_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield when runs reached an accuracy or a loss, where the user asked, several runs were tested
    or one did not reach it."""
    tested = [row for row in rows if row.run.time_to_accuracy]
    of_runs = {run.run: run.time_to_accuracy for _, run in tested if run.time_to_accuracy}
    num_reached = sum(reached.is_reached for reached in of_runs.values())
    is_asked = any(reached.is_asked for reached in of_runs.values())
    if len(tested) < 2 and num_reached == len(tested) and not is_asked:
        return

    def of(row: Row) -> TimeToAccuracy:
        return of_runs[row.run.run]

    def against(row: Row) -> float | None:
        """Divide the mean time of the runs that its speed-up is against by its own."""
        baseline = row.run.compared_with
        times = [of_runs[run].time_s for run in baseline if run in of_runs]
        known = [time_s for time_s in times if time_s is not None]
        own_s = of(row).time_s
        if not own_s or not known or len(known) < len(baseline):
            return None
        return sum(known) / len(known) / own_s

    first = of(tested[0])
    best = Column[Row]("best", lambda row: of(row).best, percent(2), unit="%")
    if first.goal != "accuracy":
        best = Column("best", lambda row: of(row).best, each("{:.4g}".format))
    decimals = decimals_for([reached.time_s or 0.0 for reached in of_runs.values()])
    columns = [
        _NUMBER,
        _SIZE,
        Column(
            "time",
            lambda row: of(row).time_s if of(row).is_reached else "not reached",
            number(decimals),
            unit="s",
        ),
        Column("samples", lambda row: of(row).samples, number(0)),
        Column("steps", lambda row: of(row).step, count),
        Column("epochs", lambda row: of(row).epoch, count),
        best,
        Column("times as fast\nto the goal", against, number(2), is_marked=_is_baseline),
    ]
    caption = f"Time to {goal_text(first)}, from the first step, restarts included"
    yield Table(caption, columns, tested)


def goal_sentences(runs: Sequence[RunSummary]) -> Iterator[str]:
    """Compare the times to the goal, of all runs of a size, with those of the baseline's runs."""
    times = {
        run.run: run.time_to_accuracy.time_s
        for run in runs
        if run.time_to_accuracy and run.time_to_accuracy.time_s
    }

    def measured(ids: Iterable[str]) -> Measure | None:
        known = [times.get(run) for run in ids]
        return measure([time_s for time_s in known if time_s]) if all(known) else None

    of_size: dict[tuple[Any, ...], list[RunSummary]] = {}
    for run in runs:
        if run.compared_with and run.run not in run.compared_with and run.time_to_accuracy:
            key = (*run.compared_with, *size_of_run(run), run.cell and run.cell.strategy)
            of_size.setdefault(key, []).append(run)
    by_id = {run.run: run for run in runs}
    pairs = [
        (theirs[0], own, baseline)
        for theirs in of_size.values()
        if (own := measured(run.run for run in theirs))
        and (baseline := measured(theirs[0].compared_with))
    ]
    judged = ratios([(baseline, own) for _, own, baseline in pairs])
    for (run, *_), faster in zip(pairs, judged, strict=True):
        first = by_id[run.compared_with[0]]
        assert run.time_to_accuracy is not None
        sure = " which of the two is faster is not certain," if differs(faster) is False else ""
        yield (
            f"To {goal_text(run.time_to_accuracy)}, {run.nodes} x {run.gpus_per_node} is "
            f"{interval_text(faster, 2)} times as fast as {first.nodes} x {first.gpus_per_node},"
            f"{sure} and {run.speedup or 0.0:.2f} times per sample."
        )


def goal_text(reached: TimeToAccuracy) -> str:
    """`97.0 % test accuracy`, `a test loss of 0.5`, `a training loss of 0.5`."""
    if reached.goal != "accuracy":
        return f"a {'test' if reached.goal == 'loss' else 'training'} loss of {reached.target:g}"
    return f"{format_percent(reached.target, 1)} % test accuracy"
