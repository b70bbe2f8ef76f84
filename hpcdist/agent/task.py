"""The way from submitit to the agent: the callable that is pickled at the submission, and run as a
task on every node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdist.runs.run import Run

_led: tuple[Run, int] | None = None
"""The run and its exit code, where this process was the agent of node 0, after the task."""


class AgentTask:
    """submitit's callable: be the agent of this node."""

    def __init__(self, run_path: str, scheduler: str) -> None:
        self.run_path = run_path
        self.scheduler = scheduler

    def be_agent(self) -> tuple[Run, int, int]:
        """Be the agent of this node; return the run, the node's rank, and the exit code of the run
        as far as this node knows it."""
        from hpcdist.agent.agent import run_agent
        from hpcdist.runs.run import Run
        from hpcdist.schedulers import load_scheduler

        run, place = Run(Path(self.run_path)), load_scheduler(self.scheduler).place()
        return run, place.node_rank, run_agent(run.path, place)

    def __call__(self) -> int:
        global _led  # noqa: PLW0603 - submitit ends every task that returns with 0
        run, node_rank, code = self.be_agent()
        # Other nodes exit with 0: their codes say nothing more than node 0's, and the first that
        # ends with an error could make the scheduler kill the rest.
        if node_rank == 0:
            _led = run, code
        return code


def main_of_node() -> None:
    """Be the agent of a run whose directory is this node's alone, and exit with the run's code.

    A program that has made the directory calls this, with its path and the scheduler's name as
    arguments.
    """
    run, node_rank, code = AgentTask(*sys.argv[1:]).be_agent()
    # Another node has a verdict where it could not take part; else that is node 0's.
    sys.exit(code if node_rank == 0 or run.verdict_file.exists() else 0)


def run_submitted(*, adopts: bool = True) -> tuple[Run, int] | None:
    """Run submitit's main, which calls the AgentTask; return the run and its exit code where this
    was the agent of node 0. `adopts` as for `run_pickle`."""
    from hpcdist.schedulers.submitting import run_pickle

    run_pickle(adopts=adopts)
    return _led
