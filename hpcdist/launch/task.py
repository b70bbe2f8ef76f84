"""What submitit runs on every node: a callable that holds a path, and nothing else."""

from __future__ import annotations

from pathlib import Path


class AgentTask:
    """submitit's callable: be the agent of this node."""

    def __init__(self, run_path: str) -> None:
        self.run_path = run_path

    def __call__(self) -> int:
        """Returns the exit code of the run."""
        import submitit

        from hpcdist.launch.agent import run_agent

        return run_agent(Path(self.run_path), submitit.JobEnvironment().global_rank)
