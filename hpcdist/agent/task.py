"""The entry on every node: a callable for submitit that starts the agent."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdist.runs.run import Run

_exit_code = 0
"""The exit code of this process, once submitit has stored the task's result."""

_LEAST_BYTES = 128_000
"""Of events: to read less takes two milliseconds."""
_MOST_BYTES = 32_000_000
"""To read more takes seconds."""
_MOST_FILES = 256


class AgentTask:
    """submitit's callable: be the agent of this node."""

    def __init__(
        self, run_path: str, scheduler: str, digests: Mapping[str, str] | None = None
    ) -> None:
        """`digests` are those of the run's files: `hpcdist.runs.seal`."""
        self.run_path = run_path
        self.scheduler = scheduler
        self.digests = dict(digests or {})

    def of_node(self) -> int:
        """Be the agent of a node whose run directory is its own: what it holds was checked when it
        was made."""
        from hpcdist.agent.agent import run_agent
        from hpcdist.runs.run import Run
        from hpcdist.schedulers import load_scheduler

        run, place = Run(Path(self.run_path)), load_scheduler(self.scheduler).place()
        code = run_agent(run.path, place)
        # Another node has a verdict where it could not take part; else that is node 0's.
        return code if place.node_rank == 0 or run.verdict_file.exists() else 0

    def __call__(self) -> int:
        global _exit_code  # noqa: PLW0603 - submitit ends every task that returns with 0
        from hpcdist.agent.agent import run_agent
        from hpcdist.runs.run import Run
        from hpcdist.schedulers import load_scheduler

        path = Path(self.run_path)
        # A job that waited while hpcdist was replaced may have a pickle without them.
        digests = getattr(self, "digests", {})
        scheduler = getattr(self, "scheduler", None) or Run(path).read_scheduler()
        place = load_scheduler(str(scheduler)).place()
        code = run_agent(path, place, digests)
        if place.node_rank == 0:
            keep_figures(Run(path))
        # The others' codes say nothing that node 0's does not, and whoever ends first with an
        # error could make the scheduler kill the rest.
        _exit_code = code if place.node_rank == 0 else 0
        return code


def keep_figures(run: Run) -> None:
    """Keep the figures of a run beside it at its end, where its events are many enough for a reader
    to wait for, and few enough for the nodes not to."""
    if not run.verdict_file.exists() or len(places := run.event_files()) > _MOST_FILES:
        return
    with contextlib.suppress(Exception):  # a summary reads the events then
        num_bytes = sum(path.stat().st_size for *_, path in places)
        if _LEAST_BYTES <= num_bytes <= _MOST_BYTES:
            # By its name: the agents need nothing of the summary, whose modules are above theirs.
            importlib.import_module("hpcdist.summary.measuring").keep_figures(run)


def main_of_node() -> None:
    """Be the agent of a run whose directory is this node's alone, and hold its exit code; called
    with the directory and the scheduler by a program that has made it."""
    path, scheduler = sys.argv[1:]
    sys.exit(AgentTask(path, scheduler).of_node())


def main() -> None:
    """Run submitit's main, and end with the run's exit code; the scheduler's script calls this.

    The scheduler must see a failed run as a failed job: dependencies count on it.
    """
    from hpcdist.schedulers.submitting import run_pickle

    run_pickle(adopts=True)
    sys.exit(_exit_code)
