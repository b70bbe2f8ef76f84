"""A grid looks as rich's own table does."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from hpcdist.summary.report.grid import Grid

HEADERS = ["#", "run", "nodes\nx gpus", "speed-\nup  "]
ARE_NUMBERS = [True, False, True, True]
ROWS = [
    ["1", Text("done", style="green"), "1 x 1", "1.00 *"],
    ["10", Text("f\u00e4iled", style="red"), "12 x 8", "3.20  "],
    ["100", "\u4e2d\u6587-run with a long name", "1 x 1", "-"],
]


def printed(what, width, **options):
    file = io.StringIO()
    Console(file=file, width=width, **options).print(what)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.fixture
def grid():
    grid = Grid(HEADERS, are_numbers=ARE_NUMBERS)
    for row in ROWS:
        grid.add_row(row)
    return grid


@pytest.mark.parametrize("width", [200, 60, 46, 45, 44, 30])
def test_a_grid_looks_as_richs_table_does(grid, width):
    assert printed(grid, width) == printed(grid.table(), width)


def test_styles_are_those_of_the_cells(grid):
    text = "\n".join(printed(grid, 100, force_terminal=True, color_system="standard"))
    assert "\x1b[32mdone\x1b[0m" in text
    assert "\x1b[31mf\u00e4iled\x1b[0m" in text


def test_a_grid_without_rows_is_its_headers():
    assert printed(Grid(HEADERS, are_numbers=ARE_NUMBERS), 80) == [
        "         nodes  speed-",
        "#  run  x gpus      up",
    ]
