"""The places of a run's files: what stands where in its directory, see `hpcdist.runs.run`.

Files of ranks and nodes have their number in their names, and that of the attempt after restarts:

    events/rank-00007.jsonl                    rank 7, at first
    events/rank-00007.attempt-2.jsonl          the same after two restarts
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partialmethod
from pathlib import Path

from hpcdist.base import files

_NUMBERED = r"-([0-9]{5,9})(?:\.attempt-([0-9]{1,9}))?"


def name_of(stem: str, ending: str, number: int, attempt: int = 0) -> str:
    """Return the name of the file of a rank or node: `rank-00007.attempt-2.jsonl`."""
    of_attempt = f".attempt-{attempt}" if attempt else ""
    return f"{stem}-{number:05d}{of_attempt}{ending}"


class _Within:
    """A path within a run directory, made when needed: lists of many runs need few of each."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __get__(self, run: RunPaths, _owner: type[RunPaths]) -> Path:
        return run.path / self._place


class RunPaths:
    """The paths of one run directory."""

    spec_file = _Within("spec.json")
    """The job, its source, versions, git state and environment, without secrets."""
    private_file = _Within("private.json")
    """The file with values of the job that look secret, in whose place spec.json has stars."""
    submission_file = _Within("submission.json")
    """Scheduler and its cluster, job id, host and process of the submission."""
    script_file = _Within("script.sh")
    verdict_file = _Within("verdict.json")
    """Why the run ended; written once."""
    figures_file = _Within("figures.msgpack")
    """The figures that a summary makes of the events, kept where these are many."""
    notify_log = _Within("notify.log")
    _reserve_file = _Within("launch/reserve")
    submitit_folder = _Within("submitit")
    launch_folder = _Within("launch")
    attempts_folder = _Within("attempts")
    """One folder per attempt, made by the agent that leads it: begin.json says what the run had to
    show then, verdict.json why it failed where another follows, hang.json that it seems to hang."""
    logs_folder = _Within("logs")
    traces_folder = _Within("traces")
    events_folder = _Within("events")
    checkpoints_folder = _Within("checkpoints")
    function_file = _Within("function.pkl")
    """The function that was submitted, and its arguments, pickled; private, as all of a run."""
    meeting_file = _Within("launch/meeting.json")
    """The file in which the first node's agent says how to reach it."""
    cancel_file = _Within("launch/cancel")
    """The file that says that the user cancelled: agents cannot tell it from other signals."""
    request_file = _Within("launch/request.json")
    """The file with what a command wants of the agents, until node 0's has taken it."""
    orders_folder = _Within("launch/orders")
    """The folder with the runs that a dev run is to start, while it takes runs."""
    orders_end = _Within("launch/orders.ended")
    """The same folder once the dev run ends, with the runs that it did not start."""
    missed_file = _Within("launch/missed.json")
    """The file that says since when the scheduler has not known the run's job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    def _numbered_file(
        self, folder: str, stem: str, ending: str, number: int, attempt: int = 0
    ) -> Path:
        return self.path / folder / name_of(stem, ending, number, attempt)

    log_file = partialmethod(_numbered_file, "logs", "rank", ".log")
    """The log of one rank in one attempt."""
    event_file = partialmethod(_numbered_file, "events", "rank", ".jsonl")
    """The file of the events of one rank in one attempt."""
    usage_file = partialmethod(_numbered_file, "events", "node", ".jsonl")
    """The file of what the ranks of one node used of it in one attempt."""
    error_file = partialmethod(_numbered_file, "errors", "rank", ".json")
    """The file in which a rank describes the exception that ends it."""
    outcome_file = partialmethod(_numbered_file, "results", "rank", ".pkl")
    """The file of what a submitted function returned or raised in one rank, pickled."""
    stacks_file = partialmethod(_numbered_file, "logs", "rank", ".stacks")
    """The file for a rank's stacks when the run hangs."""
    agent_log_file = partialmethod(_numbered_file, "logs", "agent", ".log")
    """The log of the agent of one node."""
    agent_file = partialmethod(_numbered_file, "launch", "agent", ".json")
    """The file with process, host and address of one node's agent."""

    def end_of_life_file(self, life: int) -> Path:
        """Return the file that marks that somebody saw to the end of one of the job's lives."""
        return self.launch_folder / f"life-{life:05d}.ended"

    def answer_file(self, request: str) -> Path:
        """Return the file with the agents' answer to a request, which the command removes."""
        return self.launch_folder / f"answer-{request}.json"

    def _list_numbered(self, folder: str, stem: str, ending: str) -> list[tuple[int, int, Path]]:
        """Return (number, attempt, path) of the files of one kind that can be listed, sorted."""
        paths = _listed(self.path / folder, f"{stem}{_NUMBERED}{re.escape(ending)}")
        numbers = [re.findall(r"[0-9]+", path.name) for path in paths]
        each = zip(numbers, paths, strict=True)
        return sorted((int(found[0]), int([*found, 0][1]), path) for found, path in each)

    event_files = partialmethod(_list_numbered, "events", "rank", ".jsonl")
    """The files of the events of all ranks in all attempts: (rank, attempt, path), sorted."""
    usage_files = partialmethod(_list_numbered, "events", "node", ".jsonl")
    log_files = partialmethod(_list_numbered, "logs", "rank", ".log")
    agent_logs = partialmethod(_list_numbered, "logs", "agent", ".log")

    def agent_files(self) -> list[Path]:
        """Return the files of all nodes whose agents have been there, in order."""
        return _listed(self.launch_folder, r"agent-.*\.json")

    def has_started(self) -> bool:
        """Return whether an agent of the run ever came to live."""
        return bool(self.agent_files())

    def job_logs(self) -> list[Path]:
        """Return what the scheduler kept of the job's own output, before and around the ranks; with
        the scheduler's own report only where nothing else says anything."""
        logs = _listed(self.submitit_folder, r"(?s)[^.].*\.(?:log|out|err)")
        own = [path for path in logs if not path.name.endswith("_report.out")]
        return own if any(path.exists() and path.stat().st_size for path in own) else logs


def _listed(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder with such names, sorted; none where it cannot be read."""
    with suppress(OSError):
        names = filter(re.compile(pattern).fullmatch, files.list_names(folder))
        return [folder / name for name in sorted(names)]
    return []
