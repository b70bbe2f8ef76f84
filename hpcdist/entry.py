"""The entry of a scheduler's script on every node: the agent, and after it the figures of its run.

It stands above the agents and the summary, so that agents need not import the summary: the figures
cost an import only at the end.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from hpcdist.runs.run import Run
from hpcdist.schedulers import load_scheduler
from hpcdist.schedulers.base import AgentTask

_LEAST_BYTES = 128_000
"""Least size of events: to read less takes two milliseconds."""
_MOST_BYTES = 32_000_000
"""To read more takes seconds."""
_MOST_FILES = 256


def main() -> None:
    """Be the agent of this node; on node 0, keep the figures of the run, and exit with the code of
    the run; on others with 0. The scheduler's script calls this."""
    run_and_code = run_submitted()
    if run_and_code is None:
        sys.exit(0)
    run, code = run_and_code
    keep_figures(run)
    # The scheduler must see a failed run as a failed job: dependencies count on it.
    sys.exit(code)


def main_of_node() -> None:
    """Be the agent of a run whose directory is this node's alone, and exit with the run's code.

    A program that has made the directory calls this, with its path and the scheduler's name as
    arguments.
    """
    run_path, scheduler = sys.argv[1:]
    run, node_rank, code = _be_agent(AgentTask(run_path=run_path, scheduler=scheduler))
    # Another node has a verdict where it could not take part; else that is node 0's.
    sys.exit(code if node_rank == 0 or run.verdict_file.exists() else 0)


def run_submitted(*, adopts: bool = True) -> tuple[Run, int] | None:
    """Do the job's task in submitit's main; return the run and its exit code where this was the
    agent of node 0: submitit ends every task that returns with 0. `adopts` as for `run_pickle`.

    The local scheduler's script calls this.
    """
    from hpcdist.schedulers.submitting import run_pickle

    led: list[tuple[Run, int]] = []

    def be_agent(task: AgentTask) -> int:
        run, node_rank, code = _be_agent(task)
        # Other nodes exit with 0: their codes say nothing more than node 0's, and the first that
        # ends with an error could make the scheduler kill the rest.
        if node_rank == 0:
            led.append((run, code))
        return code

    run_pickle(be_agent, adopts=adopts)
    return led[0] if led else None


def _be_agent(task: AgentTask) -> tuple[Run, int, int]:
    """Be the agent of this node; return the run, the node's rank, and the exit code of the run as
    far as this node knows it."""
    from hpcdist.agent.agent import run_agent  # the job of a summary has no use for it

    run, place = Run(Path(task.run_path)), load_scheduler(task.scheduler).place()
    return run, place.node_rank, run_agent(run.path, place)


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
