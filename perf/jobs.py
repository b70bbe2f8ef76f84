"""One run of a job by `hpcdist submit`, on this machine, and what its ranks recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commands import HPCDIST, started

from hpcdist.runs.events import read_events
from hpcdist.runs.run import all_runs


def run_job(job: str, ranks: int, settings: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Run a job to its end on one node; the events of each rank."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        runs = folder / "runs"
        command = [HPCDIST, "submit", job, "--gpus", str(ranks), "--local", "--runs", str(runs)]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        with started([command], folder) as running:
            running.wait()
        (run,) = all_runs(runs)
        return [read_events(path) for _, _, path in run.event_files()]
