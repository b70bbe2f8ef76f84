"""The summary as files: what --summary-after leaves beside the runs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from hpcdist import files
from hpcdist.run import Run
from hpcdist.states import run_states
from hpcdist.summary import print_summary, summarize, to_json


def write_summary(runs: Sequence[Run], folder: Path) -> str:
    """Write summary.txt and summary.json into `folder`; returns the text."""
    from hpcdist.summary.table import make_console

    summary = summarize(runs, run_states(runs))
    text = io.StringIO()
    print_summary(summary, make_console(text))
    files.write_whole(folder / "summary.txt", text.getvalue())
    files.write_json(folder / "summary.json", to_json(summary))
    return text.getvalue()
