"""The task that the job of --summary-after executes.

A module of its own: queued jobs name it in their pickles, and submitting needs no summary.
"""

from __future__ import annotations

from pathlib import Path


class SummaryTask:
    """submitit's callable: write the summary of runs that have ended."""

    def __init__(self, run_paths: list[str], folder: str) -> None:
        self.run_paths = run_paths
        self.folder = folder

    def __call__(self) -> None:
        """Write summary.txt and summary.json into the folder."""
        from hpcdist.runs.run import Run
        from hpcdist.summary.writing import write_summary

        write_summary([Run(Path(path)) for path in self.run_paths], Path(self.folder))
