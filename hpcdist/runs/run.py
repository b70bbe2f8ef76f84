"""A run: the directory that holds all there is to know about one submission of a job.

    <runs>/<id>/
      spec.json               the job, its source, versions, git state, environment (no secrets)
      private.json            values of the job that look secret, which are stars in spec.json; only
                              agents read it
      submission.json         scheduler and its cluster, job id, host and process of the submission
      script.sh               what the scheduler was given
      code/                   the copy of the work tree that the job runs from (runs/code.py); runs
                              of a sweep share that of the sweep
      submitit/               submitit's pickle, its digest, result and logs
      launch/                 where the agents meet; one file per node about its agent; requests to
                              them, and their answers; until the verdict, a reserve of disk space
                              for it
      attempts/NNNNN/         one folder per attempt, made by the agent that leads it; begin.json
                              says what the run had to show then, verdict.json why it failed or
                              stopped where another attempt is to follow, hang.json where its
                              ranks seem to hang
      logs/rank-NNNNN.log     output of a rank (rank-NNNNN.attempt-K.log after restarts)
      events/rank-NNNNN.jsonl what a rank recorded; named likewise, as all below
      events/node-NNNNN.jsonl what the ranks of a node used of it, by its agent
      traces/                 Chrome traces of the steps that were profiled, one per rank
      errors/                 what a rank wrote about the exception that ended it
      checkpoints/            what the run can go on from
      function.pkl            the function that was submitted from Python, with its arguments, and
      results/                what it returned or raised in each rank
      verdict.json            why it ended; written once
      notify.log              who was told of the end or a hang, or why not
      figures.msgpack         what a summary makes of the events, where they are many

The directory is private to the user (mode 0700), and whole files are written aside and renamed.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import re
import secrets
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partialmethod
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import RunDirectoryError, RunNotFoundError
from hpcdist.base.ownership import is_own, owner_of, read_own
from hpcdist.base.served import is_served
from hpcdist.base.text import nearest
from hpcdist.base.trees import list_tree, remove_listed
from hpcdist.job.spec import JobSpec
from hpcdist.runs import rank_files
from hpcdist.runs.rank_files import list_numbered
from hpcdist.runs.spec import (
    JobOutline,
    LaunchPlan,
    RunSpec,
    Submission,
    SweepPlace,
    decode_launch,
)
from hpcdist.runs.verdict import Beginning, Hang, Verdict

DEFAULT_RUNS = "runs"
RUNS_VARIABLE = "HPCDIST_RUNS"

_FOLDERS = ("submitit", "launch", "attempts", "logs", "events", "errors", "checkpoints")
_OWN_FOLDERS = ("attempts", "events")
"""By which a run's folder is known where its spec.json is damaged."""
_AGENT_FILE = re.compile(r"agent-.*\.json")
_JOB_LOG = re.compile(r"[^.].*\.(?:log|out|err)", re.DOTALL)
_ATTEMPT = re.compile(r"[0-9]{5,9}")
_ID_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # no letters that look like digits
ID = re.compile(rf"(?P<submission>[^.].*-\d{{8}}-\d{{6}}-[{_ID_LETTERS}]{{4}})(?:-\d{{3,}})?")
_BEHIND_JOB = re.compile(r"-\d{8}-\d{6}-.*")
_MOST_COMPARED = 200
_OF_UNFINISHED = re.compile(
    rf"(?:{'|'.join(_FOLDERS)})|launch/(?:requests|reserve|\.reserve\.\w+)|sweep\.json|\.(?:spec|sweep)\.json\.\w+"
    r"|code(?:/.*)?",
    re.DOTALL,
)
_SPEC_KEYS = frozenset({"created_s", "job"})
"""Keys that every spec.json of hpcdist has had; other programs write files of that name, too."""
_SLUG_LENGTH = 40
_FOREIGN = "its keys or values are not those of hpcdist"
_RESERVE_BYTES = 1 << 17
SIGN_EVERY_S = 5.0
"""Time between two signs of life of the first node's agent."""
_SIGNS_MISSED = 4
_REPORTS = ("_lsf.out", "_pbs.out")

_Struct = TypeVar("_Struct", Beginning, Hang, Verdict)


class _Within:
    """A path within a run directory, made when it is first needed: whoever lists thousands of runs
    needs few of each."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __set_name__(self, _owner: type[Run], name: str) -> None:
        self._name = name

    def __get__(self, run: Run, _owner: type[Run]) -> Path:
        path = run.path / self._place
        run.__dict__[self._name] = path  # found there before this is asked again
        return path


class Run:
    """One run directory: its paths, and reading and writing its small files."""

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

    @classmethod
    def create(cls, runs: Path, job_name: str) -> Run:
        """Make the directory of a new run in `runs`; two calls at one instant get two runs."""
        run = cls(make_unique_folder(runs, slug(job_name)))
        run.make()
        return run

    def make(self) -> None:
        """Make the directory of a run whose id nothing else has."""
        try:
            self.path.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.path.parent, error) from None
        try:
            for folder in _FOLDERS:
                (self.path / folder).mkdir(mode=files.PRIVATE_FOLDER)
            self.write_reserve()
            self.requests_file.touch(files.PRIVATE_FILE)
        except OSError as error:
            delete_folder(self.path)
            raise cannot_write(self.path.parent, error) from None

    def write_reserve(self) -> None:
        """Reserve the disk space that the verdict takes."""
        files.write_whole(self._reserve_file, bytes(_RESERVE_BYTES))

    # Paths that depend on a rank or a node.

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

    def agent_logs(self) -> list[Path]:
        """Return the logs of the agents of all nodes, in order."""
        return [path for *_, path in list_numbered(self.logs_folder, rank_files.AGENT_LOG)]

    def has_started(self) -> bool:
        """Return whether an agent of the run ever came to live."""
        return bool(self.agent_files())

    def show_life(self) -> None:
        """Show whoever looks at the run that the agent of its first node lives."""
        with suppress(OSError):  # it is not written yet, or its disk fails
            os.utime(self.agent_file(0))

    def is_alive(self) -> bool:
        """Return whether the agent of the first node has shown that it lives a moment ago."""
        try:
            # Opening makes a shared file system tell what another host has just done.
            with files.open_regular(self.agent_file(0), most_bytes=math.inf) as file:
                shown_s = os.fstat(file.fileno()).st_mtime
        except OSError:
            return False
        return files.now_by(self.launch_folder) - shown_s < _SIGNS_MISSED * SIGN_EVERY_S

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

    def ask_to_cancel(self) -> None:
        """Tell the agents, before they are sent a signal, that the user wants the end."""
        files.write_whole(self.cancel_file, "")

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

    # Small files.

    def read_spec(self) -> RunSpec | None:
        """Return what spec.json says; None where it is missing or torn."""
        return RunSpec.decode(files.read_json(self.spec_file))

    @functools.cached_property
    def recorded_id(self) -> str | None:
        """The id in spec.json, which copies of a run share with it; its own name where an old one
        has none, and None where it cannot be read."""
        return self._id_in(files.read_json(self.spec_file))

    def _id_in(self, content: Any) -> str | None:
        recorded = content.get("id", self.id) if isinstance(content, dict) else None
        return recorded if isinstance(recorded, str) else None

    def write_spec(self, spec: RunSpec) -> None:
        files.write_json(self.spec_file, spec.encode())

    def read_launch(self) -> tuple[JobSpec, LaunchPlan, RunSpec]:
        """Return what an agent starts its ranks by, secret arguments included.

        Raises msgspec.ValidationError, and NotOwnError for files that others can have changed.
        """
        paths = (self.spec_file, self.private_file)
        found = (read_own(path) if os.path.lexists(path) else b"" for path in paths)
        return decode_launch(*map(files.parse_json, found))

    def read_outline(self) -> JobOutline:
        """Return what spec.json says of the run's job; nothing where it is missing or torn."""
        return (self.read_spec() or RunSpec()).outline

    def read_sweep_place(self) -> SweepPlace | None:
        """Return the run's place in its sweep; None for a run by itself."""
        return (self.read_spec() or RunSpec()).sweep

    def read_submission(self) -> Submission | None:
        """Return what submission.json says; None before the run was submitted."""
        return Submission.decode(files.read_json(self.submission_file))

    def write_submission(self, submission: Submission) -> None:
        files.write_json(self.submission_file, msgspec.to_builtins(submission))

    def read_job_id(self) -> str | None:
        """Return the id of the scheduler's job; None before the run was submitted."""
        return (self.read_submission() or Submission()).job_id

    def read_scheduler(self) -> str | None:
        """Return the scheduler that has the run, or is taking it; None where files are damaged.

        Without submission.json a submission goes on or was killed, and its agents may live: then
        the scheduler is the one that spec.json names.
        """
        if self.submission_file.exists():
            return (self.read_submission() or Submission()).scheduler
        return (self.read_spec() or RunSpec()).scheduler

    def read_verdict(self) -> Verdict | None:
        """Return what verdict.json says; None while the run goes on, or where it is torn."""
        return _read(self.verdict_file, Verdict)

    def write_verdict(self, verdict: Verdict) -> bool:
        """Write the verdict unless there is one; True for the one writer that won.

        It takes the place of the run's reserve of disk space: a run that filled its disk must be
        able to say so.
        """
        content = files.to_json(msgspec.to_builtins(verdict))
        return files.write_once(self.verdict_file, content, reserve=self._reserve_file)

    def look_anew(self) -> None:
        """Have verdicts that other hosts have just written found, in the place of what a client of
        a shared file system remembers: it was told before that there is none."""
        files.refresh(self.path)
        with suppress(OSError):  # removed a moment ago
            if (newest := self.newest_attempt()) >= 0:
                files.refresh(self._attempt_file(newest, "verdict.json").parent)

    def describe_damage(self) -> str | None:
        """Say which of these files are there and cannot be read, and why; None where all can."""
        read = {
            self.spec_file: self.read_spec,
            self.submission_file: self.read_submission,
            self.verdict_file: self.read_verdict,
        }
        damaged = [path for path, value in read.items() if value() is None]
        texts = [
            f"{path.name} cannot be read: {files.why_unreadable(path) or _FOREIGN}"
            for path in damaged
            if os.path.lexists(path)
        ]
        return "; ".join(texts) or None

    # Attempts.

    def write_attempt_verdict(self, verdict: Verdict) -> None:
        """Say why an attempt ended after which the ranks are started again."""
        path = self._attempt_file(verdict.attempt, "verdict.json")
        files.write_json(path, msgspec.to_builtins(verdict))

    def write_lost_attempt_verdict(self, verdict: Verdict) -> bool:
        """Say why an attempt ended whose own agents did not; True where there was no verdict on it
        yet."""
        path = self._attempt_file(verdict.attempt, "verdict.json")
        return files.write_once(path, files.to_json(msgspec.to_builtins(verdict)))

    def read_attempt_verdict(self, attempt: int) -> Verdict | None:
        """Return why an attempt ended; None where it goes on, or was the last."""
        return _read(self._attempt_file(attempt, "verdict.json"), Verdict)

    def age_of_attempt_verdict(self, attempt: int) -> float:
        """Return the seconds since an attempt's verdict was written, by the clock of the files."""
        try:
            written_s = self._attempt_file(attempt, "verdict.json").stat().st_mtime
        except OSError:
            return math.inf
        return files.now_by(self.launch_folder) - written_s

    def write_beginning(self, attempt: int, beginning: Beginning) -> None:
        path = self._attempt_file(attempt, "begin.json")
        files.write_json(path, msgspec.to_builtins(beginning))

    def read_beginning(self, attempt: int) -> Beginning | None:
        """Return how an attempt began; None where that is not known."""
        return _read(self._attempt_file(attempt, "begin.json"), Beginning)

    def write_hang(self, hang: Hang) -> None:
        path = self._attempt_file(hang.attempt, "hang.json")
        files.write_json(path, msgspec.to_builtins(hang))

    def read_hang(self, attempt: int) -> Hang | None:
        """Return what is said of an attempt that hangs; None where it does not, or no more."""
        hang = _read(self._attempt_file(attempt, "hang.json"), Hang)
        return None if hang is None or hang.recovered_s is not None else hang

    def _attempt_file(self, attempt: int, name: str) -> Path:
        return self.attempts_folder / f"{attempt:05d}" / name

    def claim_end_of_life(self, life: int) -> bool:
        """Take it on to have the job started again after one of its lives; True for one caller."""
        try:
            self._end_of_life_file(life).touch(files.PRIVATE_FILE, exist_ok=False)
        except FileExistsError:
            return False
        return True

    def has_claimed_end_of_life(self, life: int) -> bool:
        """Return whether somebody has taken that on."""
        return self._end_of_life_file(life).exists()

    def _end_of_life_file(self, life: int) -> Path:
        return self.launch_folder / f"life-{life:05d}.ended"

    def claim_attempt(self) -> int:
        """Take the next attempt number; whoever holds the newest leads the run."""
        attempt = self.newest_attempt() + 1
        while True:
            try:
                (self.attempts_folder / f"{attempt:05d}").mkdir(mode=files.PRIVATE_FOLDER)
            except FileExistsError:
                attempt += 1
            else:
                return attempt

    def attempts(self) -> list[int]:
        """Return the attempt numbers taken, in order."""
        return sorted(map(int, filter(_ATTEMPT.fullmatch, files.list_names(self.attempts_folder))))

    def newest_attempt(self) -> int:
        """Return the newest attempt number taken; -1 before the first."""
        return max(self.attempts(), default=-1)


def runs_folder(option: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder that holds the runs: --runs, then HPCDIST_RUNS, then ./runs; absolute."""
    return Path(option or os.environ.get(RUNS_VARIABLE) or DEFAULT_RUNS).absolute()


def name_to_type(path: Path) -> str:
    """Return what names a run or a sweep in a command that the user types next: its id where the
    command finds it by that, else its path. At a host, its id: the laptop knows where it is."""
    is_usual = path.parent == runs_folder() or is_served()
    return path.name if is_usual else shlex.quote(str(path))


def all_runs(runs: Path) -> list[Run]:
    """Return every run in the folder, oldest first; entries that are not runs are left out."""
    try:
        with os.scandir(runs) as listed:
            entries = files.first_entries(listed, runs)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunDirectoryError(
            f"{runs}: the runs cannot be read: {error.strerror}",
            hint="name another folder with --runs or HPCDIST_RUNS",
        ) from None
    by_age: list[tuple[tuple[int, str], Run]] = []
    for entry in filter(files.is_folder, entries):
        if entry.name.startswith("."):  # no run's name does, see `slug`
            continue
        run = Run(Path(entry.path))
        content = files.read_json(run.spec_file)
        if is_run(run.path, content):
            run.recorded_id = run._id_in(content)  # noqa: SLF001 - its file is read just once
            by_age.append((created_ns(run, RunSpec.decode(content)), run))
    return [run for _, run in sorted(by_age, key=operator.itemgetter(0))]


def is_run(path: str | Path, content: Any = ...) -> bool:
    """Return whether a folder is a run's: its spec.json, whose content may be given, is one that
    hpcdist wrote.

    One that is damaged counts where the folder itself is as hpcdist makes it: by its name, or by
    what is in it.
    """
    file = os.path.join(path, "spec.json")
    content = files.read_json(Path(file)) if content is ... else content
    if isinstance(content, dict) and content.keys() >= _SPEC_KEYS:
        return True
    if content is None and not os.path.lexists(file):
        return False
    is_named_so = ID.fullmatch(os.path.basename(os.path.abspath(path))) is not None
    return is_named_so or all(os.path.isdir(os.path.join(path, own)) for own in _OWN_FOLDERS)


def is_run_name(name: str) -> bool:
    """Return whether a folder of this name may have been made for a run, or a sweep."""
    return ID.fullmatch(name) is not None


def is_of_unfinished(place: str) -> bool:
    """Return whether the folder of an unfinished run or sweep may hold this, which nobody misses;
    `.` is the folder itself."""
    return place == "." or _OF_UNFINISHED.fullmatch(place) is not None


def find_run(runs: Path, name: str) -> Run:
    """Return the run that a run id, an unambiguous prefix of one, a path, or `last` names."""
    if "/" in name and is_run(name):
        return Run(Path(name).absolute())
    if name not in {"", ".", "..", "last"} and "/" not in name and is_run(runs / name):
        return Run(runs / name)  # its whole id: of thousands of runs none other is read
    existing = all_runs(runs)
    if not existing:
        raise RunNotFoundError(
            f"there are no runs in {runs}",
            hint="submit one with: hpcdist submit ddp --local, or name their folder with --runs",
        )
    if name == "last":
        return _last_own(existing, runs)
    exact = [run for run in existing if run.id == name]
    matches = exact or ([run for run in existing if run.id.startswith(name)] if name else [])
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise RunNotFoundError(
            f"no run in {runs} begins with {name!r}",
            hint=f"{_meant(name, existing)}list them with: hpcdist runs",
        )
    newest = ", ".join(run.id for run in matches[-5:])
    raise RunNotFoundError(
        f"{len(matches)} runs in {runs} begin with {name!r}",
        hint=f"give more of the id; the newest are {newest}",
    )


def _meant(name: str, existing: Sequence[Run]) -> str:
    """Return the question after what a name is like: the newest run of a job, a run, or `last`."""
    ids = [run.id for run in existing[-_MOST_COMPARED:]]
    like = {run_id: run_id for run_id in ids}
    like |= {_BEHIND_JOB.sub("", run_id): run_id for run_id in ids}
    near = nearest(name, ["last", *like])
    meant = "last" if name == "newest" or near == "last" else like.get(near or "")
    return f"did you mean {meant}? " if meant else ""


def _last_own(existing: Sequence[Run], runs: Path) -> Run:
    """Return the newest that is this user's own: somebody else may put a run beside it."""
    for run in reversed(existing):
        if is_own(run.path):
            return run
    raise RunNotFoundError(
        f"all runs in {runs} belong to other users",
        hint="name one by its id; list them with: hpcdist runs",
    )


def check_own(path: Path, verb: str) -> None:
    """Raise RunDirectoryError for the directory of a run, or a sweep, of somebody else's."""
    if not is_own(path):
        raise RunDirectoryError(
            f"{path} belongs to {owner_of(path)}, and hpcdist {verb} is for its owner alone",
            hint="list the runs with: hpcdist runs",
        )


def created_ns(run: Run, spec: RunSpec | None = None) -> tuple[int, str]:
    """Return when a run was made, to sort by; from the directory where spec.json does not say."""
    created_s = (spec or run.read_spec() or RunSpec()).created_s
    if created_s is not None:
        return int(created_s * 1e9), run.id
    try:
        return run.path.stat().st_mtime_ns, run.id
    except OSError:  # deleted a moment ago
        return 0, run.id


def slug(name: str) -> str:
    """Return a job's name as a part of a path: ASCII letters, digits, dots and dashes only."""
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:_SLUG_LENGTH]
    return text or "job"


def cannot_write(runs: Path, error: OSError) -> RunDirectoryError:
    """Return the error for a folder of runs that cannot be made or written."""
    another = "name another folder with --runs or HPCDIST_RUNS"
    return RunDirectoryError(
        f"{runs}: the run directory cannot be written: {error.strerror}",
        hint=f"free some space, or {another}" if error.errno in files.FULL else another,
    )


def make_unique_folder(runs: Path, job_slug: str) -> Path:
    """Make a folder in `runs` that nothing else has: the job, the time, and a random tail."""
    while True:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        tail = "".join(secrets.choice(_ID_LETTERS) for _ in range(4))
        path = runs / f"{job_slug}-{stamp}-{tail}"
        try:
            runs.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
            path.mkdir(mode=files.PRIVATE_FOLDER)
        except FileExistsError:
            if not runs.is_dir():
                raise RunDirectoryError(
                    f"{runs} is a file, not a folder for runs",
                    hint="name another folder with --runs or HPCDIST_RUNS",
                ) from None
        except OSError as error:
            raise cannot_write(runs, error) from None
        else:
            return path


def delete_folder(folder: Path) -> None:
    """Delete the directory of a run or a sweep that is not needed; what cannot be deleted stays,
    and so does another's that has taken its place, as who may write the folder of the runs can
    arrange."""
    with suppress(OSError):
        tree = list_tree(folder)
        contents = (files.read_json(folder / name) for name in ("spec.json", "sweep.json"))
        if all(one.get("id") == folder.name for one in contents if isinstance(one, dict)):
            remove_listed(tree)
            folder.rmdir()


def _read(path: Path, kind: type[_Struct]) -> _Struct | None:
    try:
        return files.convert(files.read_json(path), kind)
    except msgspec.ValidationError:
        return None


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
