"""Answers to an agent on one of Azure's nodes: its place among the nodes, its life, and what
follows the end of a life.

Azure starts a job again by itself whose low-priority nodes were taken away, and tells that nobody:
nodes get SIGTERM at most. A job that reached its time limit is not started again, and one of its
nodes cannot submit another: the verdict says that it can go on.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.base import JobPlace, Rendezvous
from hpcdist.schedulers.hosts import LIFE_VARIABLE, age_of_job
from hpcdist.schedulers.requeue import Decision, RequeueRefusedError

KEY_FILE = "meeting.key"
"""Comes with the job; its content is a secret of the run's agents, in hexadecimal digits."""
KEY_VARIABLE = "HPCDIST_JOB_KEY"
"""Names the file with the secret of the run's agents."""
DEFAULT_PORT = 6105


class AzureNode:
    """The part of the scheduler that is asked within a job."""

    def place(self) -> JobPlace:
        """Return the place by the variables that Azure gives each process of a job with
        `distribution: pytorch`: one process per node, so that its world is the nodes."""
        num_nodes = int(os.environ.get("WORLD_SIZE") or 1)
        return JobPlace(
            node_rank=int(os.environ.get("NODE_RANK") or os.environ.get("RANK") or 0),
            num_nodes=num_nodes,
            host=socket.gethostname(),
            age_s=age_of_job(),
            rendezvous=_rendezvous() if num_nodes > 1 else None,
        )

    def life(self) -> int:
        """Return how often the job was started before, which its output shows."""
        return int(os.environ.get(LIFE_VARIABLE) or 0)

    def decide(self, verdict: Verdict) -> Decision:
        """Leave a kill or a preemption, and the loss of a node, to Azure; end at the time limit."""
        if verdict.kind == "time_limit":
            return Decision(sequel="final", cause="time_limit")
        if verdict.kind == "preempted" or verdict.signal == "SIGTERM":
            return Decision(sequel="open", cause="kill or requeue")
        return Decision(sequel="open", cause="nothing")

    def requeue(self, run: Run) -> None:
        raise RequeueRefusedError(f"Azure starts {run.id} again by itself, or not at all")


def _rendezvous() -> Rendezvous:
    """Return where Azure's variables have the nodes meet: a name is looked up, for agents say which
    address they mean."""
    address = socket.getaddrinfo(os.environ["MASTER_ADDR"], None, type=socket.SOCK_STREAM)[0][4][0]
    return Rendezvous(
        address=str(address),
        port=int(os.environ.get("MASTER_PORT") or DEFAULT_PORT),
        secret=Path(os.environ[KEY_VARIABLE]).read_text().strip(),
    )
