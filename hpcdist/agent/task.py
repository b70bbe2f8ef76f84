"""What submitit runs on every node: a callable that holds a path, and nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_exit_code = 0


class AgentTask:
    """submitit's callable: be the agent of this node."""

    def __init__(self, run_path: str) -> None:
        self.run_path = run_path

    def __call__(self) -> int:
        """Returns the exit code of the run."""
        import submitit

        from hpcdist.agent.agent import run_agent
        from hpcdist.agent.node import find_place

        submitted = submitit.JobEnvironment()
        is_local = submitted.cluster == "local"  # also inside an allocation of Slurm
        place = find_place(submitted.global_rank, {} if is_local else os.environ)
        code = run_agent(Path(self.run_path), place)
        # The others' codes say nothing that node 0's does not, and whoever ends first with an
        # error could make the scheduler kill the rest.
        leave_with(code if place.node_rank == 0 else 0)
        return code


def leave_with(code: int) -> None:
    """The exit code of this process once submitit has stored the task's result."""
    global _exit_code  # noqa: PLW0603 - submitit ends every task that returns with 0
    _exit_code = code


def submitit_main() -> None:
    """Run submitit's main, in a process without numpy.

    submitit imports numpy as a precaution before it loads a task. Here the task is an agent, which
    needs none, and whose ranks are forks of its forks: numpy would have read OMP_NUM_THREADS and
    OPENBLAS_NUM_THREADS in the agent, before a program could set them. An agent starts sooner, and
    is smaller, too.
    """
    is_there = "numpy" in sys.modules
    if not is_there:
        sys.modules["numpy"] = None  # type: ignore[assignment] # importing it fails, as if missing
    try:
        from submitit.core import submission
    finally:
        if not is_there:
            del sys.modules["numpy"]
    submission.submitit_main()


def main() -> None:
    """What the scheduler's script starts: submitit's main, and then the run's exit code.

    The scheduler must see a failed run as a failed job: dependencies count on it.
    """
    from hpcdist.machine.pickles import adopt_pickle

    adopt_pickle(Path(sys.argv[1]))
    submitit_main()
    sys.exit(_exit_code)
