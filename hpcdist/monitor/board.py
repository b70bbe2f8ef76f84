"""All runs that `hpcdist watch` shows, and one frame of that as lines of text."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from hpcdist.base.files import list_names
from hpcdist.base.text import shown
from hpcdist.monitor.ends import EndWatch
from hpcdist.monitor.nodes import waiting_sentence
from hpcdist.monitor.progress import RanksSeen, RunningRun, at_rest
from hpcdist.monitor.screen import clock
from hpcdist.monitor.states import OPEN_STATES, run_conditions
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import State, Verdict

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
            ended = [run.id for run in runs if conditions[run.id].state not in OPEN_STATES]
            forgotten = set(ended[:-_SHOWN_ENDED])
            runs = [run for run in runs if run.id not in forgotten]
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
        if self._folder is not None:
            for name in sorted(_names(self._folder) - self._seen):
                run = Run(self._folder / name)
                # A run's folder is there before the run is submitted.
                if run.submission_file.exists():
                    self._seen.add(name)
                    self._runs[name] = run
                    self._ends.add([run])
        self.verdicts |= self._ends.look()
        return [self._view(run) for run in self._runs.values()]

    def _view(self, run: Run) -> RunView:
        verdict = self.verdicts.get(run.id)
        if verdict is not None:
            self._running.pop(run.id, None)
            ranks = self._last_seen.get(run.id)
            details = [] if verdict.state == "done" else [verdict.message]
            return RunView(run=run.id, state=verdict.state, ranks=ranks, details=details)
        if run.id not in self._running:
            self._running[run.id] = RunningRun(run)
        ranks = self._running[run.id].look()
        if ranks is not None:
            self._last_seen[run.id] = ranks
        condition = self._ends.conditions[run.id]
        state, why = condition.state, waiting_sentence(condition) or condition.reason
        is_at_work = ranks is not None and ranks.num_alive and ranks.quiet_s < _RECENT_S
        if state == "pending" and is_at_work:
            state, why = "running", None  # it began after the scheduler was asked
        if ranks is not None and (condition.is_suspended or state == "pending"):
            ranks = msgspec.structs.replace(ranks, progress=at_rest(ranks.progress))
        troubles = ranks.troubles if ranks is not None and state == "running" else []
        return RunView(
            run=run.id, state=state, ranks=ranks, details=[*([why] if why else []), *troubles]
        )


def _names(folder: Path | None) -> set[str]:
    try:
        return set() if folder is None else set(list_names(folder))
    except OSError:  # not there yet
        return set()


_HEADER = ("RUN", "STATE", "STEP", "EPOCH", "SAMPLES/S", "RANKS", "LEFT")
_EPOCH = _HEADER.index("EPOCH")
_NUM_TEXTS = 2
"""Columns that stand left; the others hold numbers."""
_ORDER = ("running", "failed", "lost", "unknown", "pending")
"""States in the order of their rows: what goes on and what went wrong comes first."""
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
"""Most lines of a text that is broken."""


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
    counts = Counter(view.state for view in views)
    said = ", ".join(f"{counts[state]} {state}" for state in sorted(counts, key=_place))
    head: list[Line] = [[Part(said or "no runs", "bold"), Part(f"  {shown(title)}", "dim")]]
    head += [[Part(f"note: {shown(note)}", "yellow")] for note in notes]
    if not views:
        return head
    ordered = sorted(views, key=lambda view: _place(view.state))
    header, *rows = _fitted([_HEADER, *(_cells(view) for view in ordered)], width)
    widths = _widths([header, *rows])
    head += [[Part("")], _row(header, widths, "dim", state_style="dim")]
    lines: list[Line] = []
    for number, (view, cells) in enumerate(zip(ordered, rows, strict=True)):
        style = _STYLES.get(view.state, _OTHER_STYLE)
        details = [line for detail in view.details for line in _broken(shown(detail), width)]
        block = [
            _row(cells, widths, "", state_style=style),
            *([Part(f"{_INDENT}{line}", "dim")] for line in details),
        ]
        left = len(ordered) - number
        # A run is shown with all its details, and a line is kept for those left out.
        if height is not None and len(head) + len(lines) + len(block) + (left > 1) > height:
            return [*head, *lines, [Part(f"... and {left} more", "dim")]]
        lines += block
    return [*head, *lines]


def plain(lines: Iterable[Line]) -> str:
    """Return the frame without styles."""
    return "".join("".join(part.text for part in line).rstrip() + "\n" for line in lines)


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

    def shortened(name: str) -> str:  # runs of one job differ in the end of their names
        whole = len(name) <= most
        return name if whole else f"{name[: most - _KEPT_END - 1]}…{name[-_KEPT_END:]}"

    return [[shortened(row[0]), *row[1:]] for row in rows]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _total(rows: Sequence[Sequence[str]]) -> int:
    return len(_GAP.join(width * " " for width in _widths(rows)))


def _cells(view: RunView) -> tuple[str, ...]:
    name = shown(view.run)
    if view.ranks is None:
        return (name, view.state, "", "", "", "", "")
    ranks, progress, is_running = view.ranks, view.ranks.progress, view.state == "running"
    total = f"/{progress.total_steps}" if progress.total_steps else ""
    left_s = progress.remaining_s if is_running else None
    return (
        name,
        view.state,
        "" if progress.step is None else f"{progress.step}{total}",
        "" if progress.epoch is None else str(progress.epoch + 1),
        "" if progress.samples_per_s is None else f"{progress.samples_per_s:,.0f}",
        _ranks_alive(ranks) if is_running else "",
        "" if left_s is None else clock(left_s),
    )


def _ranks_alive(ranks: RanksSeen) -> str:
    """`7/8`, or of those of thousands that were looked at `511/512 of 8192`."""
    if ranks.num_looked_at is None:
        return f"{ranks.num_alive}/{ranks.world_size}"
    return f"{ranks.num_alive}/{ranks.num_looked_at} of {ranks.world_size}"


def _row(cells: Sequence[str], widths: Sequence[int], style: str, *, state_style: str) -> Line:
    texts = [
        cell.ljust(width) if column < _NUM_TEXTS else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    name, state, *numbers = texts
    return [
        Part(f"{name}{_GAP}", style),
        Part(state, state_style),
        Part("".join(f"{_GAP}{number}" for number in numbers), style),
    ]


def _place(state: str) -> tuple[int, str]:
    return (_ORDER.index(state) if state in _ORDER else len(_ORDER), state)
