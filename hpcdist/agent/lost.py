"""The verdict on an attempt whose agents were lost with their nodes: written by those of the next.

Nobody is left to say why a job of one node ended with it, or one whose node 0 went down together
with its ranks, where the scheduler starts the job again before another agent has spoken.
"""

from __future__ import annotations

import time
from typing import Any

from hpcdist.agent.outcome import failure, lives
from hpcdist.base import files
from hpcdist.runs.run import Run


def note_lost_attempt(run: Run, *, life: int) -> None:
    """Give the newest attempt a verdict where it is of a former life and has none.

    To be called by every agent before it writes its own file: the files name the former hosts, and
    of several agents the first, who sees all of them, is the one that writes.
    """
    begun = lives.beginnings(run)
    attempt = run.newest_attempt()
    if attempt not in begun or begun[attempt].life >= life:
        return
    if run.read_attempt_verdict(attempt) is not None:
        return
    agents = [
        found for path in run.agent_files() if isinstance(found := files.read_json(path), dict)
    ]
    where = agents[0] if len(agents) == 1 else {}
    run.write_lost_attempt_verdict(
        failure.without_rank(
            "agent_lost",
            f"{_told(agents)} left no verdict before the job was started again: lost with a node",
            time_s=time.time(),
            attempt=attempt,
            node=where.get("node"),
            host=where.get("host"),
        )
    )


def _told(agents: list[dict[str, Any]]) -> str:
    places = [f"node {one.get('node')} (host {one.get('host')})" for one in agents]
    if len(places) <= 1:
        return f"the agent of {places[0] if places else 'the job'}"
    return f"the agents of {', '.join(places[:-1])} and {places[-1]}"
