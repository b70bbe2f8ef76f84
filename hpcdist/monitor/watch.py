"""The view of `hpcdist watch`: all runs that it shows, one frame of them, and the screen of its own
that is drawn anew as runs and the window change."""

from __future__ import annotations

import os
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hpcdist.base.files import list_names
from hpcdist.base.text import shown
from hpcdist.monitor.progress import RunningRun, waiting_sentence
from hpcdist.monitor.states import OPEN_STATES, EndWatch, run_conditions
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import State, Verdict

_INTERVAL_S = 5.0
_SHOWN_ENDED = 5
"""Runs that had ended before, where none is named."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as it is shown."""

    run: str
    state: State
    texts: list[str] = []
    """A line each on how far it is, and why it waits, what troubles it, or why it ended."""


class Board:
    """Looks at runs again and again; each look reads only what is new.

    Schedulers are asked once for all runs, at first after 5 s, later every 15 s.
    """

    def __init__(self, runs: Sequence[Run], *, folder: Path | None = None) -> None:
        """With a folder, whose runs are given, only those that go on and the last of the others
        are watched, and those that appear there later."""
        self.verdicts: dict[str, Verdict] = {}
        """On the runs that have ended."""
        self._folder, self._seen = folder, {run.id for run in runs}
        unanswered: list[str] = []
        conditions = run_conditions(runs, warn=unanswered.append)
        if folder is not None:
            ended = [run.id for run in runs if conditions[run.id].state not in OPEN_STATES]
            forgotten = set(ended[:-_SHOWN_ENDED])
            runs = [run for run in runs if run.id not in forgotten]
        self._runs = {run.id: (run, RunningRun(run)) for run in runs}
        self.ends = EndWatch(runs, interval_s=_INTERVAL_S)
        self.ends.conditions |= {run.id: conditions[run.id] for run in runs}
        self.ends.unanswered = unanswered

    @property
    def is_over(self) -> bool:
        """All runs have ended, and no other can appear."""
        return self._folder is None and not self.ends.open

    def look(self) -> list[RunView]:
        """Return every run as it is now, in the order in which they were given."""
        names: set[str] = set()
        with suppress(OSError):  # not there yet
            names = set(list_names(self._folder)) if self._folder is not None else names
        for name in sorted(names - self._seen):
            run = Run(Path(self._folder or "", name))
            # A run's folder is there before the run is submitted.
            if run.submission_file.exists():
                self._seen.add(name)
                self._runs[name] = run, RunningRun(run)
                self.ends.add([run])
        self.verdicts |= self.ends.look()
        return [self._view(run, running) for run, running in self._runs.values()]

    def _view(self, run: Run, running: RunningRun) -> RunView:
        condition, verdict = self.ends.conditions[run.id], self.verdicts.get(run.id)
        texts = [waiting_sentence(condition) or condition.reason]
        if verdict is not None and verdict.state != "done":
            texts = [verdict.message]
        if (progress := running.look(condition)) is not None:
            if condition.state == "running" and (hang := run.read_hang(progress.attempt)):
                texts.append(hang.message)
            texts.insert(0, progress.sentence(with_pace=verdict is None))
        return RunView(run=run.id, state=condition.state, texts=[text for text in texts if text])


_STYLES: dict[State, str] = {
    "running": "cyan",
    "failed": "red",
    "lost": "red",
    "unknown": "yellow",
    "pending": "yellow",
    "preempted": "yellow",
    "cancelled": "yellow",
    "done": "green",
}
"""Colours of states, in the order of their rows: what goes on and what went wrong comes first."""
_MOST_TEXT = 240


def make_frame(
    views: Sequence[RunView], *, title: str, notes: Sequence[str] = ()
) -> RenderableType:
    """Return a frame: the number of runs by state, the title, and a row for each run."""
    counts = Counter(view.state for view in views)
    states = ", ".join(f"{number} {state}" for state in _STYLES if (number := counts[state]))
    table = Table(box=None, pad_edge=False, header_style="dim", collapse_padding=True)
    table.add_column("RUN", overflow="fold", min_width=12)
    table.add_column("STATE", no_wrap=True)
    table.add_column("PROGRESS")
    for view in sorted(views, key=lambda view: [*_STYLES].index(view.state)):
        texts = [textwrap.shorten(shown(text), _MOST_TEXT, placeholder=" …") for text in view.texts]
        state = Text(view.state, _STYLES[view.state])
        table.add_row(Text(shown(view.run)), state, Text("\n".join(texts)))
    head = Text.assemble((states or "no runs", "bold"), (f"  {shown(title)}", "dim"))
    lines = [head, *(Text(f"note: {shown(note)}", "yellow") for note in notes)]
    return Group(*lines, "", table) if views else Group(*lines)


_REFRESH_S = 1.0
_MOST_LOAD = 0.1
"""Share of the time that looking may take: the ranks need the processors, and the file system,
more."""


def watch_live(board: Board, title: Callable[[], str]) -> None:
    """Show the board until all its runs have ended; the terminal is left as it was, whatever
    happens."""
    # COLUMNS and LINES, where a shell exports them, do not follow the window.
    fixed = {"COLUMNS", "LINES"}
    console = Console(_environ={key: text for key, text in os.environ.items() if key not in fixed})
    views = board.look()
    live = Live(
        console=console,
        screen=True,  # which rich draws again and again
        get_renderable=lambda: make_frame(views, title=title(), notes=board.ends.unanswered),
    )
    try:
        live.start()
        while True:
            begun_s = time.monotonic()
            views = board.look()
            if board.is_over:
                return
            time.sleep(max(_REFRESH_S, (time.monotonic() - begun_s) / _MOST_LOAD))
    finally:
        live.stop()
