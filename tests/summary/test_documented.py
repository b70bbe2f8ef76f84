"""The keys of the JSON and of the CSV are those that docs/summary-keys.md lists."""

import csv
import io
import re
from pathlib import Path

import pytest

from hpcdist.base.statistics import Interval, Measure
from hpcdist.bench.cells import BenchmarkSummary, CellTable, Findings, TimedCell
from hpcdist.runs.spec import Accounting
from hpcdist.summary import summarize
from hpcdist.summary.report.csv import to_csv
from hpcdist.summary.values import (
    SCHEMA,
    AttemptSummary,
    Cell,
    Final,
    ModelStates,
    RunSummary,
    StepTime,
    VerdictSummary,
)

PAGE = Path(__file__).parent.parent.parent / "docs" / "summary-keys.md"
EVENTS_PAGE = PAGE.with_name("events.md")
_WITHIN = {
    "samples_per_s": Measure,
    "cell": Cell,
    "step_time_s": StepTime,
    "final": Final,
    "model_states": ModelStates,
    "attempts": AttemptSummary,
    "benchmark": BenchmarkSummary,
    "verdict": VerdictSummary,
    "accounting": Accounting,
}


def keys_of_table():
    """The first cells of the table of keys: keys, and by key what is within it."""
    text = PAGE.read_text()
    table = text[text.index("| key | meaning |") :].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [re.sub(r"\{.*\}", "", cell) for cell in cells], table


def test_the_page_lists_every_key_of_a_run_and_no_other():
    cells, _ = keys_of_table()
    listed = [key for cell in cells for key in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(["schema", *RunSummary.__struct_fields__])
    assert f"version of these keys: {SCHEMA} |" in PAGE.read_text()


@pytest.mark.parametrize("key", _WITHIN)
def test_the_page_names_the_keys_within(key):
    _, table = keys_of_table()
    row = next(line for line in table.splitlines() if f"`{key}`" in line.split("|")[1])
    told = {*re.findall(r"`(\w+)`", row)}
    assert {*_WITHIN[key].__struct_fields__} <= told


def test_the_keys_of_intervals_and_of_benchmarks_are_told():
    assert {*Interval.__struct_fields__} <= {*re.findall(r"`(\w+)`", PAGE.read_text())}
    told = {*re.findall(r"`(\w+)`", EVENTS_PAGE.read_text())}
    for kind in (CellTable, TimedCell, Findings):
        assert {*kind.__struct_fields__} - {"cells"} <= told


def test_every_column_of_the_csv_is_a_documented_key(make_scaled):
    header, *_ = csv.reader(io.StringIO(to_csv(summarize(make_scaled(2), {}))))
    heads = {column.partition(".")[0] for column in header}
    assert heads <= {"schema", *RunSummary.__struct_fields__}
