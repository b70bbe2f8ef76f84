"""The view of `hpcdist watch`: all runs that it shows, one frame of them, and the screen of its own
that is drawn anew as runs and the window change."""

from __future__ import annotations

import os
import select
import sys
import termios
import textwrap
import time
import tty
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hpcdist.base.files import list_names
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
        self._runs = {run.id: (run, RunningRun(run)) for run in runs}
        self._ends = EndWatch(runs, interval_s=_INTERVAL_S, conditions=conditions)
        self._ends.unanswered = unanswered
        self._at_end: dict[str, RanksSeen | None] = {}
        """What the ranks of the runs that have ended had come to."""

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
                    self._runs[name] = run, RunningRun(run)
                    self._ends.add([run])
        self.verdicts |= self._ends.look()
        return [self._view(run, running) for run, running in self._runs.values()]

    def _view(self, run: Run, running: RunningRun) -> RunView:
        verdict = self.verdicts.get(run.id)
        if verdict is not None:
            if run.id not in self._at_end:
                self._at_end[run.id] = running.look(Condition(state=verdict.state))
            ranks = self._at_end[run.id]
            details = [] if verdict.state == "done" else [verdict.message]
            return RunView(run=run.id, state=verdict.state, ranks=ranks, details=details)
        condition = self._ends.conditions[run.id]
        state, why = condition.state, waiting_sentence(condition) or condition.reason
        ranks = running.look(condition)
        if state == "pending" and ranks is not None and ranks.is_at_work:
            state, why = "running", None  # it began after the scheduler was asked
        details = [why] if why else []
        if ranks is not None and state == "running":
            hang = run.read_hang(ranks.progress.attempt)
            details += [*([] if hang is None else [hang.message]), *ranks.troubles]
        return RunView(run=run.id, state=state, ranks=ranks, details=details)


def _names(folder: Path | None) -> set[str]:
    try:
        return set() if folder is None else set(list_names(folder))
    except OSError:  # not there yet
        return set()


_ORDER = ("running", "failed", "lost", "unknown", "pending")
"""States in the order of their rows: what goes on and what went wrong comes first."""
_STYLES = {"running": "cyan", "done": "green", "failed": "red", "lost": "red"}
_OTHER_STYLE = "yellow"
_LEAST_NAME = 12
_MOST_TEXT = 240
_AROUND = 4
"""Lines beside those of runs: the first, the header, an empty one, and how many are left out."""


def make_frame(
    views: Sequence[RunView], *, title: str, notes: Sequence[str] = (), height: int | None = None
) -> RenderableType:
    """Return a frame: the number of runs by state, the title, a row for each run, and below them
    what is to be known of each. Of more runs than fit into `height` lines the last are counted."""
    counts = Counter(view.state for view in views)
    states = ", ".join(f"{counts[state]} {state}" for state in sorted(counts, key=_place))
    lines: list[RenderableType] = [
        Text.assemble((states or "no runs", "bold"), (f"  {shown(title)}", "dim")),
        *(Text(f"note: {shown(note)}", "yellow") for note in notes),
    ]
    if not views:
        return Group(*lines)
    ordered = sorted(views, key=lambda view: _place(view.state))
    if height is not None:
        num_details = sum(bool(view.details) for view in ordered)
        room = height - _AROUND - len(notes) - min(num_details, height // 3)
        ordered = ordered[: max(1, room)]
    table = Table(box=None, pad_edge=False, header_style="dim", collapse_padding=True)
    table.add_column("RUN", overflow="fold", min_width=_LEAST_NAME)
    table.add_column("STATE", no_wrap=True)
    for name in ("STEP", "EPOCH", "SAMPLES/S", "RANKS", "LEFT"):
        table.add_column(name, justify="right", no_wrap=True)
    for view in ordered:
        state = Text(view.state, _STYLES.get(view.state, _OTHER_STYLE))
        table.add_row(Text(shown(view.run)), state, *_figures(view))
    lines += ["", table]
    if left := len(views) - len(ordered):
        lines.append(Text(f"... and {left} more", "dim"))
    for view in ordered:
        for detail in view.details:
            text = textwrap.shorten(shown(detail), _MOST_TEXT, placeholder=" …")
            lines.append(Text.assemble(f"{shown(view.run)}: ", (text, "dim")))
    return Group(*lines)


def _figures(view: RunView) -> list[str]:
    """Return the cells of a run beside its name and its state."""
    if view.ranks is None:
        return []
    ranks, progress, is_running = view.ranks, view.ranks.progress, view.state == "running"
    total = f"/{progress.total_steps}" if progress.total_steps else ""
    alive = f"{ranks.num_alive}/{ranks.world_size}"
    if ranks.num_looked_at is not None:
        alive = f"{ranks.num_alive}/{ranks.num_looked_at} of {ranks.world_size}"
    left_s = progress.remaining_s if is_running else None
    return [
        "" if progress.step is None else f"{progress.step}{total}",
        "" if progress.epoch is None else str(progress.epoch + 1),
        "" if progress.samples_per_s is None else f"{progress.samples_per_s:,.0f}",
        alive if is_running else "",
        "" if left_s is None else clock(left_s),
    ]


def _place(state: str) -> tuple[int, str]:
    return (_ORDER.index(state) if state in _ORDER else len(_ORDER), state)


_REFRESH_S = 1.0
_RESIZE_S = 0.1
_MOST_LOAD = 0.1
"""Share of the time that looking may take: the ranks need the processors, and the file system,
more."""
_READ_BYTES = 64


def watch_live(board: Board, title: Callable[[], str]) -> bool:
    """Show the board until all its runs have ended, or, which is False, q is pressed; the terminal
    is left as it was, whatever happens."""
    # COLUMNS and LINES, where a shell exports them, do not follow the window.
    fixed = {"COLUMNS", "LINES"}
    console = Console(_environ={key: text for key, text in os.environ.items() if key not in fixed})
    live = Live(console=console, screen=True, auto_refresh=False)
    with _keyboard() as keyboard:
        try:
            live.start()
            while True:
                begun_s = time.monotonic()
                views = board.look()
                if board.is_over:
                    return True
                taken_s = time.monotonic() - begun_s
                until_s = time.monotonic() + max(_REFRESH_S, taken_s / _MOST_LOAD)
                size = None
                while (left_s := until_s - time.monotonic()) > 0:
                    if size != console.size:
                        size = console.size
                        head, notes = f"q leaves  {title()}", board.unanswered
                        frame = make_frame(views, title=head, notes=notes, height=size.height)
                        live.update(frame, refresh=True)
                    if "q" in _keys(keyboard, min(_RESIZE_S, left_s)).lower():
                        return False
        finally:
            live.stop()


@contextmanager
def _keyboard() -> Iterator[int | None]:
    """Give the terminal whose keys come as they are pressed, unseen; None where there is none.
    Afterwards it is as it was. Ctrl-C and Ctrl-Z stay signals."""
    fd = None
    with suppress(AttributeError, OSError, ValueError):  # closed, or none from the begin
        fd = sys.stdin.fileno()
    if fd is None or not _is_ours(fd):
        yield None
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd, termios.TCSANOW)
        yield fd
    finally:
        if _is_ours(fd):
            # What was typed for the view is not for the shell.
            termios.tcsetattr(fd, termios.TCSAFLUSH, before)


def _keys(keyboard: int | None, wait_s: float) -> str:
    """Return the keys that were pressed, once there are some, or the time is over."""
    if keyboard is not None and _is_ours(keyboard):
        if not select.select([keyboard], [], [], wait_s)[0]:
            return ""
        with suppress(OSError):
            if pressed := os.read(keyboard, _READ_BYTES):
                return pressed.decode(errors="replace")
    time.sleep(wait_s)  # there is no terminal, or it is gone
    return ""


def _is_ours(fd: int) -> bool:
    """Return whether the terminal's keys go to this process; in the background, asking for one, or
    changing how they come, would stop the process."""
    try:
        return os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False
