"""One frame of the view, as lines of text: pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpcdist.base.text import shown
from hpcdist.monitor.follow.screen import clock
from hpcdist.monitor.watch.board import RunView

_HEADER = ("RUN", "STATE", "STEP", "EPOCH", "SAMPLES/S", "RANKS", "LEFT")
_EPOCH = _HEADER.index("EPOCH")
_NUM_TEXTS = 2
"""Columns that stand left; the others hold numbers."""
_ORDER = ("running", "failed", "lost", "unknown", "pending")
"""What goes on and what went wrong comes first: a small screen shows no more."""
_STYLES = {"running": "cyan", "done": "green", "failed": "red", "lost": "red"}
_OTHER_STYLE = "yellow"


class Part(NamedTuple):
    """A stretch of a line."""

    text: str
    style: str = ""
    """As rich has it."""


Line = Sequence[Part]

_GAP = _INDENT = "  "
_LEAST_NAME = 12
_KEPT_END = 5
_MOST_LINES = 3
"""Of what is said, where it is broken into lines."""


def make_frame(
    views: Sequence[RunView],
    *,
    title: str,
    notes: Sequence[str] = (),
    height: int | None = None,
    width: int | None = None,
) -> list[Line]:
    """How many runs are in which state, the title, and each run with what there is to say of it.

    Of more runs than fit into `height` lines the last ones are counted. Where `width` is too
    little, the epoch goes, names lose their middle, and what is said is broken into lines.
    """
    head: list[Line] = [[Part(_counts(views), "bold"), Part(f"  {shown(title)}", "dim")]]
    head += [[Part(f"note: {shown(note)}", "yellow")] for note in notes]
    if not views:
        return head
    ordered = sorted(views, key=lambda view: _place(view.state))
    header, *rows = _fitted([_HEADER, *(_cells(view) for view in ordered)], width)
    widths = _widths([header, *rows])
    head += [[Part("")], _row(header, widths, "dim")]
    blocks = [_block(view, cells, widths, width) for view, cells in zip(ordered, rows, strict=True)]
    return [*head, *_fitting(blocks, None if height is None else height - len(head))]


def plain(lines: Iterable[Line]) -> str:
    """The frame without styles."""
    return "".join("".join(part.text for part in line).rstrip() + "\n" for line in lines)


def _block(
    view: RunView, cells: Sequence[str], widths: Sequence[int], width: int | None
) -> list[Line]:
    style = _STYLES.get(view.state, _OTHER_STYLE)
    details = [line for detail in view.details for line in _broken(shown(detail), width)]
    return [
        _row(cells, widths, "", state_style=style),
        *([Part(f"{_INDENT}{line}", "dim")] for line in details),
    ]


def _broken(text: str, width: int | None) -> list[str]:
    if width is None or not text:
        return [text]
    columns = max(_LEAST_NAME, width - len(_INDENT))
    return textwrap.wrap(text, columns, max_lines=_MOST_LINES, placeholder=" …")


def _fitted(rows: Sequence[Sequence[str]], width: int | None) -> list[Sequence[str]]:
    """Rows that are no wider, as far as that goes."""
    if width is None or _total(rows) <= width:
        return list(rows)
    rows = [[*row[:_EPOCH], *row[_EPOCH + 1 :]] for row in rows]
    longest = max(len(row[0]) for row in rows)
    most = max(_LEAST_NAME, longest - max(0, _total(rows) - width))
    return [[_without_middle(row[0], most), *row[1:]] for row in rows]


def _without_middle(name: str, most: int) -> str:
    """Runs of one job differ in the end of their names."""
    if len(name) <= most:
        return name
    return f"{name[: most - _KEPT_END - 1]}…{name[-_KEPT_END:]}"


def _total(rows: Sequence[Sequence[str]]) -> int:
    widths = _widths(rows)
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _cells(view: RunView) -> tuple[str, ...]:
    name = shown(view.run)
    if view.ranks is None:
        return (name, view.state, "", "", "", "", "")
    is_running = view.state == "running"
    progress = view.ranks.progress
    step = "" if progress.step is None else str(progress.step)
    if step and progress.total_steps:
        step += f"/{progress.total_steps}"
    rate = "" if progress.samples_per_s is None else f"{progress.samples_per_s:,.0f}"
    left = "" if progress.remaining_s is None else clock(progress.remaining_s)
    return (
        name,
        view.state,
        step,
        "" if progress.epoch is None else str(progress.epoch + 1),
        rate,
        f"{view.ranks.num_alive}/{view.ranks.world_size}" if is_running else "",
        left if is_running else "",
    )


def _row(
    cells: Sequence[str], widths: Sequence[int], style: str, *, state_style: str | None = None
) -> Line:
    texts = [
        cell.ljust(width) if column < _NUM_TEXTS else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    name, state, *numbers = texts
    return [
        Part(f"{name}{_GAP}", style),
        Part(state, style if state_style is None else state_style),
        Part("".join(f"{_GAP}{number}" for number in numbers), style),
    ]


def _fitting(blocks: Sequence[list[Line]], height: int | None) -> list[Line]:
    """As many runs as there is room for, with all that there is to say of each."""
    lines = [line for block in blocks for line in block]
    if height is None or len(lines) <= height:
        return lines
    fitting: list[Line] = []
    for number, block in enumerate(blocks):
        if len(fitting) + len(block) >= height:  # a line is kept for those left out
            left = len(blocks) - number
            return [*fitting, [Part(f"... and {left} more", "dim")]]
        fitting += block
    return fitting


def _counts(views: Sequence[RunView]) -> str:
    counts = Counter(view.state for view in views)
    order = sorted(counts, key=_place)
    return ", ".join(f"{counts[state]} {state}" for state in order) or "no runs"


def _place(state: str) -> tuple[int, str]:
    return (_ORDER.index(state) if state in _ORDER else len(_ORDER), state)
