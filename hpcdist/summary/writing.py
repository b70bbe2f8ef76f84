"""The summary as files: what --summary-after, and comparisons, leave beside the runs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.monitor.states import run_accounting, run_states
from hpcdist.runs.run import Run
from hpcdist.summary import Summary, print_summary, summarize, to_json

PICTURE = "compare.png"


def write_summary(runs: Sequence[Run], folder: Path) -> str:
    """Write summary.txt and summary.json into `folder`; returns the text."""
    from hpcdist.summary.report.text import make_console

    summary = summarize(runs, run_states(runs), accounting=run_accounting(runs))
    text = io.StringIO()
    print_summary(summary, make_console(text))
    files.write_whole(folder / "summary.txt", text.getvalue())
    files.write_json(folder / "summary.json", to_json(summary))
    write_comparisons(summary, folder.parent)
    return text.getvalue()


def write_comparisons(summary: Summary, runs: Path) -> list[Path]:
    """Write compare.png and compare.json into the folder of every comparison's sweep in the folder
    of the runs; the pictures' paths. Raises OSError."""
    from hpcdist.summary.report.plot import write_plot

    written = []
    for comparison in summary.comparisons:
        folder = runs / comparison.id
        if folder.is_dir():
            files.write_json(folder / "compare.json", msgspec.to_builtins(comparison))
            write_plot(comparison, folder / PICTURE)
            written.append(folder / PICTURE)
    return written
