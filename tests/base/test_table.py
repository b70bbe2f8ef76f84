"""One table for the terminal, Markdown, CSV and pages, which sort by values."""

from __future__ import annotations

import io
import re
from typing import NamedTuple

import pytest
from rich.console import Console

from hpcdist.base import table
from hpcdist.base.statistics import Interval, Measure
from hpcdist.base.table import Column, Table, each, mean_interval, number, percent
from hpcdist.base.text import format_time, show_binary


class Run(NamedTuple):
    number: int
    name: str
    state: str
    nodes: int
    gpus: int
    speedup: float | None


RUNS = [
    Run(1, "one", "done", 1, 1, 1.0),
    Run(10, "f\u00e4iled", "failed", 12, 8, 3.2),
    Run(100, "\u4e2d\u6587-run with a long name", "done", 1, 1, None),
]
COLUMNS = [
    Column("#", lambda run: run.number),
    Column("run", lambda run: run.name, align="left"),
    Column("state", lambda run: run.state, align="left", style=lambda it: "green" * (it == "done")),
    Column("nodes\nx gpus", lambda run: (run.nodes, run.gpus), each("{0[0]} x {0[1]}".format)),
    Column("speed-\nup", lambda run: run.speedup, number(2), is_marked=lambda run: run.number == 1),
]
EXPECTED = """\
                                         nodes  speed-
  #  run                        state   x gpus      up
  1  one                        done     1 x 1  1.00 *
 10  f\u00e4iled                     failed  12 x 8    3.20
100  \u4e2d\u6587-run with a long name  done     1 x 1       -"""


def printed(shown, width, **options):
    file = io.StringIO()
    Console(file=file, width=width, **options).print(shown)
    assert not [line for line in file.getvalue().splitlines() if line.endswith(" ")]
    return file.getvalue().rstrip("\n")


def test_numbers_stand_right_and_words_left_below_their_headers():
    assert printed(Table("", COLUMNS, RUNS), 80) == EXPECTED
    coloured = printed(Table("", COLUMNS, RUNS), 80, force_terminal=True, color_system="standard")
    assert len(re.findall("\x1b\\[32mdone *\x1b\\[0m", coloured)) == 2


def test_columns_that_do_not_fit_follow_below_the_first():
    narrow = printed(Table("", COLUMNS, RUNS), 46)
    assert max(map(len, narrow.splitlines())) <= 46
    upper, lower = narrow.split("\n\n")
    assert upper.split()[:3] == ["nodes", "#", "run"]
    assert "with a long name" in upper
    assert [line.split()[0] for line in lower.splitlines()[-3:]] == ["1", "10", "100"]
    assert "10    3.20" in lower


@pytest.mark.parametrize(
    ("format_values", "values", "expected"),
    [
        (number(), [155.53, 6.318, None], ["155.5", "6.3", "-"]),
        (number(), [60.0, 0.0102], ["60.00", "0.01"]),
        (number(per=1e-3), [0.0125], ["12.5"]),
        (percent(1), [0.5, "not reached"], ["50.0", "not reached"]),
        (number(0), [12345], ["12,345"]),
        (each(show_binary), [1024, 3, 0, 1536], ["1 KiB", "3 B", "0 B", "1,536 B"]),
        (each(format_time), [0.0331, 0.168, 1.5, 2e-5], ["33.1 ms", "168 ms", "1.50 s", "20.0 µs"]),
        (
            mean_interval(1),
            [Measure(mean=2.0, interval=Interval(low=1.5, high=2.5)), Measure(mean=3.0)],
            ["2.0 ± 0.5", "3.0"],
        ),
    ],
)
def test_a_column_gets_common_decimals_and_a_dash_for_what_is_not_known(
    format_values, values, expected
):
    column = Column("", lambda value: value, format_values)
    assert [cell.text for cell in column.cells(values)] == expected


def test_cells_sort_by_their_values():
    values = [None, 1234.5, -3, Measure(mean=0.25), (1.2, 3, 0), [3, 4], "data_parallel"]
    keys = ["", "1234.5", "-3", "0.25", "1.2", "3", "data_parallel"]
    assert [cell.sort for cell in Column("", lambda value: value).cells(values)] == keys


def test_markdown_has_caption_headers_and_cells_in_which_nothing_is_markup():
    shown = Table("<b>", COLUMNS[:2], [Run(1, "a|b", "done", 1, 1, None)], "one\ntwo")
    whole = "\\<b\\>\n\n| \\# | run |\n| ---: | --- |\n| 1 | a\\|b |\n\none\n\ntwo"
    assert "\n".join(table.to_markdown(shown)) == whole


def test_csv_has_values_as_they_are_and_takes_no_name_for_a_formula():
    columns = [
        Column("speedup", lambda run: run.speedup, number(2)),
        Column("run", lambda run: run.name),
    ]
    runs = [Run(1, "=1+1\nx", "done", 1, 1, 1 / 3), Run(2, "b", "done", 1, 1, None)]
    assert table.to_csv(Table("", columns, runs)) == f"speedup,run\n{1 / 3},'=1+1 x\n,b\n"
