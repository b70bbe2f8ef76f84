"""Tables, rates, pictures and comparisons of cells, whatever a benchmark measured."""

import pytest

from hpcdist.bench.cells import (
    BenchmarkRun,
    CellTable,
    TimedCell,
    compare,
    find_lines,
    pictures,
    summarize,
    timed_cell,
    to_tables,
)

TABLE = CellTable(
    name="calls",
    caption="calls by size",
    rate="images_per_s",
    x="batch_size",
    baseline={"strategy": "single"},
    parts_of="call",
)


def cell(size, strategy, time_s, **fields):
    keys = {"batch_size": size, "strategy": strategy}
    times_s = [time_s * factor for factor in (0.99, 1.0, 1.01)]
    return timed_cell("calls", keys, times_s, amount=size, **fields)


CELLS = [
    cell(1, "single", 1e-3),
    cell(1, "spread", 2e-3, parts_s={"gather": 1e-3}),
    cell(64, "single", 4e-3, more={"worker_bytes": 5e6}),
    cell(64, "spread", 2e-3),
    TimedCell(table="calls", keys={"batch_size": 512, "strategy": "spread"}, note="out of memory"),
]


def summary(cells, table=TABLE):
    found = summarize({"table": [table], "cell": cells, "findings": []})
    assert found is not None
    return found


def texts(table):
    return [[cell.text for cell in row] for row in table.cells()]


def test_a_cell_has_the_figures_of_its_repeats():
    made = timed_cell("calls", {"size": 8}, [1.0, 2.0, 3.0], amount=8)
    assert (made.repeats, made.mean_time_s, made.sd_time_s, made.rate) == (3, 2.0, 1.0, 4.0)
    assert made.rate_measure.sd == pytest.approx(2.0)
    drifting = timed_cell("calls", {}, [1.0 + number // 100 for number in range(2_000)])
    assert drifting.time_s.count == 20
    assert drifting.sd_time_s == pytest.approx(5.916, abs=1e-3)  # of blocks: of 1 to 20


def test_a_table_has_keys_times_rates_further_figures_and_the_gain_over_the_baseline():
    table, parts = to_tables(summary(CELLS), 7)
    assert table.caption == "#7: calls by size (3 times)"
    assert [column.name for column in table.columns] == [
        *("batch size", "strategy", "time (ms)", "images/s", "worker (MB)"),
        "times as fast as single",
    ]
    assert texts(table)[0] == ["1", "single", "1.00 ± 0.02", "1,000", "-", "-"]
    assert texts(table)[3] == [
        *("64", "spread", "2.00 ± 0.05", "32,000", "-"),
        "2.00 (1.96 to 2.05)",
    ]
    assert texts(table)[4] == ["512", "spread", "out of memory", "-", "-", "-"]
    assert parts.caption == "#7: work per call (µs)"
    assert texts(parts) == [["1", "spread", "1,000"]]


def test_each_cell_is_compared_with_the_baseline_of_its_other_keys_all_together():
    found = compare(CELLS, {"strategy": "single"})
    assert [(each.cell.keys["batch_size"], round(each.gain.mean, 2)) for each in found] == [
        (1, 0.5),
        (64, 2.0),
    ]
    alone = compare(CELLS[:2], {"strategy": "single"})
    assert found[0].gain.p == pytest.approx(2 * alone[0].gain.p)


def test_the_picture_has_a_line_for_each_combination_of_other_keys_and_the_tables_figures():
    found = summary([*CELLS[2:], *CELLS[:2]])
    assert list(find_lines(found.tables[0])) == ["strategy single", "strategy spread"]
    (picture,) = pictures("job", [BenchmarkRun("run-1", "a", found)])
    assert (picture.name, picture.runs) == ("job-calls", ["run-1"])
    time_axes, rate_axes = picture.draw().axes
    line = next(line for line in rate_axes.lines if line.get_marker() == "o")
    assert list(line.get_xdata()) == [1, 64]
    assert list(line.get_ydata()) == pytest.approx([1_000, 16_000])
    assert time_axes.get_xscale() == "log"


def test_runs_that_measure_something_else_are_in_no_common_picture():
    samples = CellTable(name="calls", caption="other", rate="samples_per_s", x="batch_size")
    wider = CellTable(name="calls", caption="4 ranks", rate="images_per_s", x="batch_size")
    old, new, wide = (
        BenchmarkRun(name, name, summary(CELLS, table))
        for name, table in (("old", samples), ("new", TABLE), ("wide", wider))
    )
    (picture,) = pictures("job", [old, new])
    assert (picture.title, picture.runs) == ("job: calls by size", ["new"])
    (picture,) = pictures("job", [new, wide])
    assert (picture.title, picture.runs) == ("job: calls", ["wide", "new"])
