"""The entry of a scheduler's script on every node: the agent, and after it the figures of its run.

It stands above both, so that agents need not import the summary.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from hpcdist.runs import nodes
from hpcdist.runs.run import Run
from hpcdist.schedulers import load_scheduler
from hpcdist.schedulers.tasks import AgentTask, end_unless_adopted, own_place, read_task

_LEAST_BYTES = 128_000
"""Least size of events: to read less takes two milliseconds."""
_MOST_BYTES = 32_000_000
"""To read more takes seconds."""
_MOST_FILES = 256


def main(*, is_local: bool = False) -> None:
    """Do the task of the job whose folder, that of its submission, sys.argv names; where that was
    the agent of node 0, keep the figures of the run, and exit with its code. With `is_local`, keep
    no figures, and exit with 0."""
    folder = Path(sys.argv[1])
    task = read_task(folder)
    own_id = load_scheduler(task.scheduler).own_job_id()
    if own_id is not None:
        end_unless_adopted(folder, own_place(), own_id)
    run, node_rank, code = be_agent(task)
    with contextlib.suppress(OSError):
        (folder / f"{node_rank}.ended").touch()
    # Other nodes exit with 0: after an error the scheduler could kill those that still work.
    if node_rank == 0 and not is_local:
        keep_figures(run)
        sys.exit(code)  # the scheduler must see a failed run as a failed job


def main_of_node(run_path: str, scheduler: str) -> None:
    """Be the agent of a run whose directory is this node's alone, and exit with the run's code."""
    run, node_rank, code = be_agent(AgentTask(run_path=run_path, scheduler=scheduler))
    # Another node has a verdict where it could not take part; else that is node 0's.
    sys.exit(code if node_rank == 0 or run.verdict_file.exists() else 0)


def be_agent(task: AgentTask) -> tuple[Run, int, int]:
    """Return the run, the node's rank, and the run's exit code as far as this node knows it."""
    from hpcdist.agent.agent import run_agent

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

            measured = measuring.measure(run, keeps=True).run
            slow = measured and measured.figures and measured.figures.straggler
            if slow and load_scheduler(str(run.spec.scheduler)).has_queue:
                nodes.note("slow", slow.host, run.id)
