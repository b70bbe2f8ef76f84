"""The doctor's own job: submitted, waited for, and what it left as evidence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base.errors import SchedulerError
from hpcdist.base.terminal_lines import last_lines
from hpcdist.base.text import number_of
from hpcdist.cluster.load import LoadedProfile
from hpcdist.job.load import LoadedJob
from hpcdist.monitor.progress import NodeSeen, seen_nodes, waiting_sentence
from hpcdist.monitor.states import EndWatch, wait_until_gone
from hpcdist.runs.events import read_events
from hpcdist.runs.run import Run
from hpcdist.runs.spec import UsedContainer
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.notes import Note, read_notes
from hpcdist.submission.plan import PlannedRun, PlannedSubmission
from hpcdist.submission.submit import submit

_POLL_S = 0.2
_LAST_LINES = 200


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A round of checks."""

    loaded: LoadedJob
    """The check job."""
    scheduler: str
    cluster: LoadedProfile
    runs: Path
    with_job: bool
    timeout_s: float
    """Time that the job may take, its wait included."""
    say: Callable[[str], None]
    """Told why the job waits, and where a run that failed is."""
    check: Callable[[], None]
    """Called between looks; may raise, which ends the job."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that the job left."""

    run_id: str
    num_nodes: int
    ranks_per_node: int
    versions: dict[str, str | None]
    """Versions on the machine that submitted."""
    verdict: Verdict
    nodes: list[NodeSeen]
    places: list[dict[str, Any]]
    """The event `place` of each rank that wrote one, in their order."""
    collectives: list[dict[str, Any]]
    """The event `collective` of each rank that wrote one."""
    logs: dict[int, list[str]]
    """Last lines of what the start of each node's agent printed, by node."""
    ended: frozenset[int] = frozenset()
    """Nodes on which the agent's process ended in order."""
    notes: list[Note] = []
    """Hosts on which what starts the agents had no success."""
    scheduler_says: str = ""
    """The scheduler's words on the job's end."""
    container: UsedContainer | None = None
    """The image that the job ran in."""

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.ranks_per_node

    @property
    def all_nodes(self) -> str:
        """The nodes in words: `2 nodes`."""
        return number_of(self.num_nodes, "node")

    @property
    def reason(self) -> str:
        """Why the job ended, in words."""
        return "; ".join(filter(None, (self.verdict.message, self.scheduler_says)))


def run_trial(planned: PlannedRun, request: Request) -> tuple[Run, Verdict]:
    """Submit the job and wait for its end, and until its scheduler has it no more: the directory of
    a job that still runs cannot be removed, nor its logs be complete.

    Raises SchedulerError where it is refused, or takes too long. What interrupts the wait ends it.
    """
    (run,) = submit(PlannedSubmission(plans=[planned]), runs=request.runs).runs
    end, said = EndWatch([run]), None

    def tell() -> None:
        nonlocal said
        request.check()
        waiting = waiting_sentence(end.conditions[run.id])
        if waiting not in {None, said}:
            said = waiting
            request.say(f"the job is pending: {waiting}")

    try:
        verdicts = end.wait(check=tell, interval_s=_POLL_S, limit_s=request.timeout_s)
        if run.id in verdicts:
            wait_until_gone(run, with_job=True)
    except BaseException:
        planned.scheduler.cancel([run])
        raise
    if run.id not in verdicts:
        planned.scheduler.cancel([run])
        state = end.conditions[run.id].state + (f": {said}" if said else "")
        raise SchedulerError(
            f"the job was {state}, after {request.timeout_s / 60:g} minutes; it was cancelled",
            hint="wait longer with --timeout MINUTES",
        )
    return run, verdicts[run.id]


def collect(run: Run, verdict: Verdict, scheduler_says: str) -> Evidence:
    spec, folder = run.spec, run.submitit_folder
    num_nodes = spec.outline.resources.nodes or 1
    events = [event for _, _, path in run.event_files() for event in read_events(path)]
    return Evidence(
        run_id=run.id,
        num_nodes=num_nodes,
        ranks_per_node=spec.outline.resources.gpus or 1,
        versions=spec.versions,
        verdict=verdict,
        nodes=seen_nodes(run),
        places=[event for event in events if event["event"] == "place"],
        collectives=[event for event in events if event["event"] == "collective"],
        # submitit's files have the number of their task, which is the node's, in their names.
        logs={
            node: last_lines(path, _LAST_LINES)
            for node in range(num_nodes)
            for path in folder.glob(f"*_{node}_log.out")
        },
        ended=frozenset(node for node in range(num_nodes) if (folder / f"{node}.ended").exists()),
        notes=[note for path in sorted(folder.glob("*.notes")) for note in read_notes(path)],
        scheduler_says=scheduler_says,
        container=spec.container,
    )
