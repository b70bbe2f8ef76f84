"""The places of a run's files: what stands where in its directory, see `hpcdist.runs.run`."""

from __future__ import annotations

import os
import re
from functools import partialmethod
from pathlib import Path

from hpcdist.base import files
from hpcdist.runs import rank_files
from hpcdist.runs.rank_files import list_numbered

_AGENT_FILE = re.compile(r"agent-.*\.json")
_JOB_LOG = re.compile(r"[^.].*\.(?:log|out|err)", re.DOTALL)
_REPORTS = ("_lsf.out", "_pbs.out")


class _Within:
    """A path within a run directory, made when it is first needed: whoever lists thousands of runs
    needs few of each."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __set_name__(self, _owner: type[RunPaths], name: str) -> None:
        self._name = name

    def __get__(self, run: RunPaths, _owner: type[RunPaths]) -> Path:
        path = run.path / self._place
        run.__dict__[self._name] = path  # found there before this is asked again
        return path


class RunPaths:
    """The paths of one run directory."""

    spec_file = _Within("spec.json")
    private_file = _Within("private.json")
    """The file with values of the job that look secret, in whose place spec.json has stars."""
    submission_file = _Within("submission.json")
    script_file = _Within("script.sh")
    verdict_file = _Within("verdict.json")
    figures_file = _Within("figures.msgpack")
    notify_log = _Within("notify.log")
    _reserve_file = _Within("launch/reserve")
    submitit_folder = _Within("submitit")
    launch_folder = _Within("launch")
    attempts_folder = _Within("attempts")
    logs_folder = _Within("logs")
    traces_folder = _Within("traces")
    events_folder = _Within("events")
    errors_folder = _Within("errors")
    checkpoints_folder = _Within("checkpoints")
    function_file = _Within("function.pkl")
    """The function that was submitted, and its arguments, pickled; private, as all of a run."""
    meeting_file = _Within("launch/meeting.json")
    """The file in which the first node's agent says how to reach it."""
    cancel_file = _Within("launch/cancel")
    """The file that says that the user cancelled: agents cannot tell it from other signals."""

    requests_file = _Within("launch/requests")
    """The file with what commands want of the agents, a line each; it is there from the start, as
    a shared file system may take half a minute to show another host a name that is new."""

    missed_file = _Within("launch/missed.json")
    """The file that says since when the scheduler has not known the run's job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _numbered_file(
        self, folder: str, stem: str, ending: str, number: int, attempt: int = 0
    ) -> Path:
        return self.path / folder / rank_files.name_of(stem, ending, number, attempt)

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

    def answer_file(self, request: str) -> Path:
        """Return the file with the agents' answer to a request, which its reader removes."""
        return self.launch_folder / f"answer-{request}.json"

    def wanted_file(self, request: str) -> Path:
        """Return the file that is there while a command waits for the answer to a request."""
        return self.launch_folder / f"wanted-{request}"

    def agent_file(self, node: int) -> Path:
        """Return the file with process, host and address of one node's agent."""
        return self.launch_folder / rank_files.name_of("agent", ".json", node)

    def agent_files(self) -> list[Path]:
        """Return the files of all nodes whose agents have been there, in order."""
        return _matching(self.launch_folder, _AGENT_FILE)

    def has_started(self) -> bool:
        """Return whether an agent of the run ever came to live."""
        return bool(self.agent_files())

    def agent_logs(self) -> list[Path]:
        """Return the logs of the agents of all nodes, in order."""
        return [path for *_, path in list_numbered(self.logs_folder, rank_files.AGENT_LOG)]

    def job_logs(self) -> list[Path]:
        """Return what the scheduler kept of the job's own output, before and around the ranks.

        The report of LSF or PBS is among them only where nothing else says anything.
        """
        logs = _matching(self.submitit_folder, _JOB_LOG)
        own = [path for path in logs if not path.name.endswith(_REPORTS)]
        return own if any(map(_has_content, own)) else logs

    def named_log(self, name: str | None) -> Path | None:
        """Return the log of a rank that a verdict names, where it is one of the run's directory:
        else it could name any file."""
        return self._named(name or "", self.logs_folder, rank_files.LOG_FILE)

    def named_trace(self, name: str) -> Path | None:
        """Return the trace of profiled steps that an event names, as `named_log` does."""
        return self._named(name, self.traces_folder, rank_files.TRACE_FILE)

    def _named(self, name: str, folder: Path, pattern: re.Pattern[str]) -> Path | None:
        if not rank_files.is_place(name, folder.name, pattern):
            return None
        path = os.path.realpath(self.path / name)
        return Path(path) if path.startswith(f"{os.path.realpath(self.path)}/") else None

    def event_files(self) -> list[tuple[int, int, Path]]:
        """Return (rank, attempt, path) of every event file, sorted."""
        return list_numbered(self.events_folder, rank_files.EVENT_FILE)

    def usage_files(self) -> list[tuple[int, int, Path]]:
        """Return (node, attempt, path) of what was sampled of every node, sorted."""
        return list_numbered(self.events_folder, rank_files.USAGE_FILE)

    def log_files(self) -> list[tuple[int, int, Path]]:
        """Return (rank, attempt, path) of every rank's log, sorted."""
        return list_numbered(self.logs_folder, rank_files.LOG_FILE)

    def find_log(self, rank: int, attempt: int) -> Path | None:
        """Return the log of a rank in an attempt where there is one, without listing those of
        others."""
        path: Path = self.log_file(rank, attempt)
        return path if path.exists() else None


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _matching(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    try:
        names = files.list_names(folder)
    except OSError:
        return []
    return [folder / name for name in sorted(names) if pattern.fullmatch(name)]
