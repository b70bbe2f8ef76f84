"""All runs that `hpcdist watch` shows, and one frame of that as lines of text."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from hpcdist.base.text import shown
from hpcdist.monitor.ends import EndWatch
from hpcdist.monitor.nodes import waiting_sentence
from hpcdist.monitor.progress import RanksSeen, RunningRun
from hpcdist.monitor.screen import clock
from hpcdist.monitor.states import OPEN_STATES, run_conditions
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import State, Verdict
from hpcdist.schedulers.base import Condition

_INTERVAL_S = 5.0
_RECENT_S = 20.0
_SHOWN_ENDED = 5
"""Runs that had ended before, where none is named."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as it is shown."""

    run: str
    state: State
    ranks: RanksSeen | None = None
    details: list[str] = []
    """Why it waits, what troubles it, or why it ended."""


class Board:
    """Looks at runs again and again; each look reads only what is new.

    Schedulers are asked once for all runs, at first after 5 s, later every 15 s.
    """

    def __init__(self, runs: Sequence[Run], *, folder: Path | None = None) -> None:
        """With a folder, whose runs are given, only those that go on and the last of the others
        are watched, and those that appear there later."""
        self.verdicts: dict[str, Verdict] = {}
        """On the runs that have ended."""
        self._folder = folder
        self._seen = _names(folder)
        unanswered: list[str] = []
        conditions = run_conditions(runs, warn=unanswered.append)
        if folder is not None:
            runs = _of_interest(runs, conditions)
        self._runs = {run.id: run for run in runs}
        self._ends = EndWatch(runs, interval_s=_INTERVAL_S, conditions=conditions)
        self._ends.unanswered = unanswered
        self._running: dict[str, RunningRun] = {}
        self._last_seen: dict[str, RanksSeen] = {}

    @property
    def is_over(self) -> bool:
        """All runs have ended, and no other can appear."""
        return self._folder is None and not self._ends.is_open

    @property
    def unanswered(self) -> list[str]:
        """The reasons why schedulers do not answer."""
        return self._ends.unanswered

    def look(self) -> list[RunView]:
        """Return every run as it is now, in the order in which they were given."""
        for run in self._new_runs():
            self._runs[run.id] = run
            self._ends.add([run])
        self.verdicts |= self._ends.look()
        return [self._view(run) for run in self._runs.values()]

    def _new_runs(self) -> Iterator[Run]:
        if self._folder is None:
            return
        for name in sorted(_names(self._folder) - self._seen):
            run = Run(self._folder / name)
            # A run's folder is there before the run is submitted.
            if run.submission_file.exists():
                self._seen.add(name)
                yield run

    def _view(self, run: Run) -> RunView:
        verdict = self.verdicts.get(run.id)
        if verdict is not None:
            self._running.pop(run.id, None)
            ranks = self._last_seen.get(run.id)
            return RunView(run=run.id, state=verdict.state, ranks=ranks, details=_why(verdict))
        if run.id not in self._running:
            self._running[run.id] = RunningRun(run)
        ranks = self._running[run.id].look()
        if ranks is not None:
            self._last_seen[run.id] = ranks
        return open_view(run, self._ends.conditions[run.id], ranks)


def open_view(run: Run, condition: Condition, ranks: RanksSeen | None) -> RunView:
    """Return the view of a run without a verdict."""
    state = condition.state
    if state == "pending" and ranks is not None and ranks.num_alive and ranks.quiet_s < _RECENT_S:
        condition = Condition(state="running")  # it began after the scheduler was asked
    waiting = waiting_sentence(condition) if state == "pending" else condition.reason
    troubles = ranks.troubles if ranks is not None and condition.state == "running" else []
    details = [waiting] if waiting else []
    return RunView(run=run.id, state=condition.state, ranks=ranks, details=[*details, *troubles])


def _of_interest(runs: Sequence[Run], conditions: Mapping[str, Condition]) -> list[Run]:
    ended = [run.id for run in runs if conditions[run.id].state not in OPEN_STATES]
    forgotten = set(ended[:-_SHOWN_ENDED])
    return [run for run in runs if run.id not in forgotten]


def _why(verdict: Verdict) -> list[str]:
    return [] if verdict.state == "done" else [verdict.message]


def _names(folder: Path | None) -> set[str]:
    try:
        return set() if folder is None else set(os.listdir(folder))
    except OSError:  # not there yet
        return set()


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
    """Return the lines of a frame: the number of runs by state, the title, and each run with its
    details.

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
    """Return the frame without styles."""
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
    """Return as many runs as there is room for, with all their details."""
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
