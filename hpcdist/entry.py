"""The entry of a scheduler's script on every node: the agent, and after it the figures of its run.

It stands above the agents and the summary, so that agents need not import the summary: the figures
cost an import only at the end. The script of the local scheduler begins with agent/task.py.
"""

from __future__ import annotations

import contextlib
import sys

from hpcdist.agent import task
from hpcdist.runs.run import Run

_LEAST_BYTES = 128_000
"""Least size of events: to read less takes two milliseconds."""
_MOST_BYTES = 32_000_000
"""To read more takes seconds."""
_MOST_FILES = 256


def main() -> None:
    """Be the agent of this node; on node 0, keep the figures of the run, and exit with the code of
    the run; on others with 0. The scheduler's script calls this."""
    run_and_code = task.run_submitted()
    if run_and_code is None:
        sys.exit(0)
    run, code = run_and_code
    keep_figures(run)
    # The scheduler must see a failed run as a failed job: dependencies count on it.
    sys.exit(code)


def keep_figures(run: Run) -> None:
    """Keep the figures of a run beside it at its end, where its events are many enough for a reader
    to wait for, and few enough for the nodes not to."""
    if not run.verdict_file.exists() or len(places := run.event_files()) > _MOST_FILES:
        return
    with contextlib.suppress(Exception):  # a summary reads the events then
        num_bytes = sum(path.stat().st_size for *_, path in places)
        if _LEAST_BYTES <= num_bytes <= _MOST_BYTES:
            from hpcdist.summary import measuring  # 0.1 s, which small runs need not pay

            measuring.keep_figures(run)
