"""The keys of the JSON and of the CSV are those that docs/summary-keys.md lists."""

import csv
import io
import re
from pathlib import Path

from hpcdist.base.statistics import Interval
from hpcdist.bench.cells import CellTable, Findings, TimedCell
from hpcdist.runs.spec import Accounting
from hpcdist.summary import summarize
from hpcdist.summary.report.text import to_csv
from hpcdist.summary.values import (
    SCHEMA,
    AttemptSummary,
    Cell,
    ModelStates,
    RunSummary,
    VerdictSummary,
)

PAGE = Path(__file__).parent.parent.parent / "docs" / "summary-keys.md"
EVENTS_PAGE = PAGE.with_name("events.md")


def words(page):
    return {*re.findall(r"`(\w+)`", page.read_text())}


def test_the_page_lists_every_key_of_a_run_and_no_other_and_names_those_within():
    text = PAGE.read_text()
    table = text[text.index("| key | meaning |") :].split("\n\n")[0]
    cells = [re.sub(r"\{.*\}", "", line.split("|")[1]) for line in table.splitlines()[2:]]
    listed = [key for cell in cells for key in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(["schema", *RunSummary.__struct_fields__])
    assert f"version of these keys: {SCHEMA} |" in text
    for kind in (Cell, ModelStates, AttemptSummary, VerdictSummary, Accounting, Interval):
        assert {*kind.__struct_fields__} <= words(PAGE)
    for kind in (CellTable, TimedCell, Findings):
        assert {*kind.__struct_fields__} - {"cells"} <= words(EVENTS_PAGE)


def test_every_column_of_the_csv_is_a_documented_key(make_scaled):
    header, *_ = csv.reader(io.StringIO(to_csv(summarize(make_scaled(2), {}))))
    heads = {column.partition(".")[0] for column in header}
    assert heads <= {"schema", *RunSummary.__struct_fields__}
