"""`hpcdist watch`: runs as they wait, run and end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from hpcdist.base.errors import EXIT_DONE, EXIT_INTERRUPTED
from hpcdist.cli.follow import Interrupted, Interrupts
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import host_option, named_runs, run_arguments, runs_option
from hpcdist.cli.printing import note

_WIDE = 1000
"""Columns where no terminal limits them."""


@click.command(cls=HostCommand)
@run_arguments
@click.option("--once", is_flag=True, help="Print one frame, as of now.")
@host_option
@runs_option
def watch(*, run_names: tuple[str, ...], once: bool, runs: Path) -> int:
    """Watch runs in a view that refreshes itself; Ctrl-C leaves it.

    With RUN, the command ends when all of these runs have ended: for one run, with its exit code,
    else as `submit --wait` does for a sweep. Without RUN, it shows all active runs, the last ones
    that ended, and those that are submitted meanwhile.

    If stdout is not a terminal, it prints one frame.
    """
    watched = named_runs(runs, run_names)
    is_live = not once and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if not watched and not is_live:
        note(f"there are no runs in {runs}; submit one with: hpcdist submit ddp --local")
        return EXIT_DONE
    from rich.console import Console

    from hpcdist.monitor.states import exit_code_of_all
    from hpcdist.monitor.watch import Board, make_frame, watch_live

    what = " ".join(run_names) if run_names else str(runs)

    def title() -> str:
        return f"{time.strftime('%H:%M:%S')}  {what}"

    interrupts = Interrupts()
    try:
        with interrupts.handled():
            board = Board(watched, folder=None if run_names else runs)
            if is_live:
                watch_live(board, title)
            frame = make_frame(board.look(), title=title(), notes=board.ends.unanswered)
            Console(width=None if sys.stdout.isatty() else _WIDE).print(frame, highlight=False)
    except Interrupted:
        return EXIT_INTERRUPTED
    if not is_live:
        return EXIT_DONE
    if len(watched) == 1:
        return board.verdicts[watched[0].id].exit_code_of_run
    return exit_code_of_all(board.verdicts.values())
