"""A run: the directory that holds all there is to know about one submission of a job.

docs/run-directory.md lists what is in it, and `RunPaths` has the paths. The directory is private to
the user (mode 0700), and whole files are written aside and renamed. The runs of a sweep lie beside
its folder, which has no spec.json, for a sweep is no run:

    <runs>/<sweep id>/
      sweep.json          its id: the runs have all else
      <job>/script.sh     what the scheduler was given for an array, and submitit/ with its files
      summary.txt, .json  the summary of a comparison, which the command that waited wrote
    <runs>/<sweep id>-000/    the run of the first point, and so on: runs like all others
"""

from __future__ import annotations

import functools
import glob
import itertools
import math
import os
import pickle
import re
import secrets
import shlex
import time
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import (
    HpcdistError,
    RunDirectoryError,
    RunFailedError,
    RunNotFoundError,
)
from hpcdist.base.ownership import (
    Door,
    doors,
    empty_tree,
    is_own,
    measure_tree,
    owner_id,
    owner_name,
    read_own,
)
from hpcdist.base.text import nearest
from hpcdist.base.version import is_served
from hpcdist.job.spec import JobSpec, job_from_dict
from hpcdist.runs.paths import RunPaths
from hpcdist.runs.spec import LaunchPlan, RunSpec, Submission, SweepPlace
from hpcdist.runs.verdict import Beginning, Hang, Verdict

SWEEP_FILE = "sweep.json"
HOLDER = "from hpcdist.dev import main"
"""Stands in the program of a run that holds nodes for others."""
_FOLDERS = ("submitit", "launch", "attempts", "logs", "events", "errors", "checkpoints")
_ID_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # no letters that look like digits
ID = re.compile(rf"(?P<submission>[^.].*-\d{{8}}-\d{{6}}-[{_ID_LETTERS}]{{4}})(?:-\d{{3,}})?")
_MOST_COMPARED = 200
_ANOTHER = "name another folder with --runs or HPCDIST_RUNS"
_ATTEMPT = re.compile(r"[0-9]{5,9}")
_RESERVE_BYTES = 1 << 17
SIGN_EVERY_S = 5.0
"""Time between two signs of life of the first node's agent."""
_SIGNS_MISSED = 4


class RunAttempts(RunPaths):
    """The attempts and lives of a run: who leads, how each began, and why it ended."""

    def claim_attempt(self) -> int:
        """Take the next attempt number; whoever holds the newest leads the run."""
        attempt = self.newest_attempt() + 1
        while not self.take_attempt(attempt):
            attempt += 1
        return attempt

    def take_attempt(self, attempt: int) -> bool:
        """Take this attempt number; return False where another has it."""
        with suppress(FileExistsError):
            (self.attempts_folder / f"{attempt:05d}").mkdir(mode=files.PRIVATE_FOLDER)
            return True
        return False

    def attempts(self) -> list[int]:
        """Return the attempt numbers taken, in order; none where the folder is gone."""
        try:
            names = files.list_names(self.attempts_folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(map(int, filter(_ATTEMPT.fullmatch, names)))

    def newest_attempt(self) -> int:
        """Return the newest attempt number taken; -1 before the first."""
        return max(self.attempts(), default=-1)

    def is_overtaken(self, attempt: int) -> bool:
        """Return True where a newer attempt has begun: this one must decide and write nothing."""
        return self.newest_attempt() > attempt

    def attempt_file(self, attempt: int, name: str) -> Path:
        """Return the place of one of an attempt's files, there or not."""
        return self.attempts_folder / f"{attempt:05d}" / name

    def write_beginning(self, attempt: int, beginning: Beginning) -> None:
        _write(self.attempt_file(attempt, "begin.json"), beginning)

    def read_beginning(self, attempt: int) -> Beginning | None:
        """Return how an attempt began; None where that is not known."""
        return files.read_as(self.attempt_file(attempt, "begin.json"), Beginning)

    def read_beginnings(self) -> dict[int, Beginning]:
        """Return how each attempt began, by attempt, without those of which that is not known."""
        begun = {attempt: self.read_beginning(attempt) for attempt in self.attempts()}
        return {attempt: beginning for attempt, beginning in begun.items() if beginning is not None}

    def next_life(self) -> int:
        """Return the number of the job's next life; a start that began no attempt was none."""
        return 1 + max((begun.life for begun in self.read_beginnings().values()), default=-1)

    def write_hang(self, hang: Hang) -> None:
        _write(self.attempt_file(hang.attempt, "hang.json"), hang)

    def read_hang(self, attempt: int) -> Hang | None:
        """Return what is said of an attempt that hangs; None where it does not, or no more."""
        hang = files.read_as(self.attempt_file(attempt, "hang.json"), Hang)
        return None if hang is None or hang.recovered_s is not None else hang

    def write_attempt_verdict(self, verdict: Verdict) -> None:
        """Say why an attempt ended after which the ranks are started again."""
        _write(self.attempt_file(verdict.attempt, "verdict.json"), verdict)

    def read_attempt_verdict(self, attempt: int) -> Verdict | None:
        """Return why an attempt ended; None where it goes on, or was the last."""
        return files.read_as(self.attempt_file(attempt, "verdict.json"), Verdict)

    def age_of_attempt_verdict(self, attempt: int) -> float:
        """Return the seconds since an attempt's verdict was written, by the clock of the files."""
        with suppress(OSError):
            written_s = self.attempt_file(attempt, "verdict.json").stat().st_mtime
            return files.now_by(self.launch_folder) - written_s
        return math.inf

    def claim_end_of_life(self, life: int) -> bool:
        """Take it on to have the job started again after one of its lives; True for one caller."""
        try:
            self.end_of_life_file(life).touch(files.PRIVATE_FILE, exist_ok=False)
        except FileExistsError:
            return False
        return True

    def look_anew(self) -> None:
        """Make verdicts visible that other hosts have just written: NFS caches that none is."""
        files.refresh(self.path)
        files.refresh(self.attempt_file(self.newest_attempt(), "verdict.json").parent)


def _write(path: Path, value: msgspec.Struct) -> None:
    files.write_json(path, msgspec.to_builtins(value))


class Run(RunAttempts):
    """One run directory: reading and writing its small files."""

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
            for folder in _FOLDERS:
                (self.path / folder).mkdir(mode=files.PRIVATE_FOLDER)
            self.write_reserve()
        except OSError as error:
            delete_folder(self.path)
            raise cannot_write(self.path.parent, error) from None

    def write_reserve(self) -> None:
        """Reserve the disk space that the verdict takes."""
        files.write_whole(self._reserve_file, bytes(_RESERVE_BYTES))

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

    def ask_to_cancel(self) -> None:
        """Tell the agents, before they are sent a signal, that the user wants the end; those, too,
        of runs in the nodes that this one holds: the scheduler's signal may reach ranks first."""
        files.write_whole(self.cancel_file, "")
        for order in self.orders_folder.glob("[0-9]*"):
            inside = Run(self.path.parent / order.stem.partition("-")[2])
            if inside.launch_folder.is_dir():
                inside.ask_to_cancel()

    def read_spec(self) -> RunSpec | None:
        """Return what spec.json says; None where it is missing or torn."""
        return files.read_as(self.spec_file, RunSpec)

    @functools.cached_property
    def recorded_id(self) -> str | None:
        """The id in spec.json, which copies of a run share with it."""
        return self.spec.id

    def write_spec(self, spec: RunSpec) -> None:
        _write(self.spec_file, spec)

    def read_launch(self) -> tuple[JobSpec, LaunchPlan, RunSpec]:
        """Return what an agent starts its ranks by, secret arguments included. Raises
        msgspec.ValidationError, and NotOwnError for files that others can have changed."""
        try:
            spec = files.convert(files.parse_json(read_own(self.spec_file)), RunSpec)
            private = files.parse_json(read_own(self.private_file)) if spec.hidden else {}
        except ValueError as error:
            raise msgspec.ValidationError(str(error)) from None
        hidden = files.convert(private, dict[str, Any])
        if spec.plan is None or not hidden.keys() >= set(spec.hidden):
            raise msgspec.ValidationError("it has no plan, or private.json lacks a value")
        return job_from_dict(spec.job | hidden), spec.plan, spec

    @property
    def spec(self) -> RunSpec:
        """The content of spec.json; that of an empty one where it is missing or torn."""
        return self.read_spec() or RunSpec()

    def read_submission(self) -> Submission | None:
        """Return what submission.json says; None before the submission, or where it is damaged."""
        return files.read_as(self.submission_file, Submission)

    def write_submission(self, submission: Submission) -> None:
        _write(self.submission_file, submission)

    def read_job_id(self) -> str | None:
        """Return the id of the scheduler's job; None before the run was submitted."""
        return (self.read_submission() or Submission()).job_id

    def read_scheduler(self) -> str | None:
        """Return the scheduler that has the run, or is taking it; None where files are damaged.

        Without a submission.json that can be read, the run's agents may live: a submission goes on
        or was killed, or the file is damaged. Then it is the scheduler that spec.json names.
        """
        submission = self.read_submission() or Submission()
        return submission.scheduler or self.spec.scheduler

    def read_verdict(self) -> Verdict | None:
        """Return what verdict.json says; None while the run goes on, or where it is torn."""
        return files.read_as(self.verdict_file, Verdict)

    def write_verdict(self, verdict: Verdict) -> bool:
        """Write the verdict unless there is one; True for the one writer that won.

        It takes the place of the run's reserve of disk space: a run that filled its disk must be
        able to say so.
        """
        content = files.to_json(msgspec.to_builtins(verdict))
        return files.write_once(self.verdict_file, content, reserve=self._reserve_file)

    def describe_damage(self) -> str | None:
        """Say which file is there and cannot be read, and why; None where all can."""
        places = (self.spec_file, self.submission_file, self.verdict_file)
        for path, kind in zip(places, (RunSpec, Submission, Verdict), strict=True):
            if os.path.lexists(path) and (why := files.why_unreadable(path, kind)):
                return f"{path.name} cannot be read: {why}"
        return None


def runs_folder(option: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder that holds the runs: --runs, then HPCDIST_RUNS, then ./runs; absolute."""
    return Path(option or os.environ.get("HPCDIST_RUNS") or "runs").absolute()


def name_to_type(path: Path) -> str:
    """Return what names a run or a sweep in a command that the user types next: its id where the
    command finds it by that, else its path. At a host, its id: the laptop knows where it is."""
    is_usual = path.parent == runs_folder() or is_served()
    return path.name if is_usual else shlex.quote(str(path))


def all_runs(runs: Path) -> list[Run]:
    """Return every run in the folder, oldest first; entries that are not runs are left out."""
    try:
        names = files.list_names(runs)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunDirectoryError(
            f"{runs}: the runs cannot be read: {error.strerror}", hint=_ANOTHER
        ) from None
    found = []
    for name in names:
        # No run's name begins with a dot, see `slug`.
        if name.startswith(".") or not os.path.isdir(place := os.path.join(runs, name)):
            continue
        run = Run(Path(place))
        spec = run.spec
        if is_run(run.path, spec):
            run.recorded_id = spec.id  # its file is read just once
            found.append((created_ns(run, spec), run))
    return [run for _, run in sorted(found, key=itemgetter(0))]


def is_run(path: str | Path, spec: RunSpec | None = None) -> bool:
    """Return whether a folder is a run's: by its spec.json, as other programs write files of that
    name, too; by a folder where that is damaged."""
    run = Run(Path(path))
    spec = spec or run.spec
    if spec.job and spec.created_s:
        return True
    return os.path.lexists(run.spec_file) and os.path.isdir(run.attempts_folder)


def find_run(runs: Path, name: str) -> Run:
    """Return the run that a run id, an unambiguous prefix of one, a path, `last`, or `dev` for the
    last dev run names."""
    path = Path(name) if "/" in name else runs / name
    if name not in {"", ".", "..", "last"} and is_run(path):
        return Run(path.absolute())  # its whole id: of thousands of runs none other is read
    existing = all_runs(runs)
    if name in ("last", "dev"):
        named = existing if name == "last" else [run for run in existing if holds_nodes(run)]
        own = (run for run in reversed(named) if is_own(run.path))  # others may put theirs there
        matches = list(itertools.islice(own, 1))
    else:
        matches = [run for run in existing if name and run.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    message, hint = f"no run in {runs} begins with {name!r}", "list them with: hpcdist runs"
    if matches:
        message = f"{len(matches)} runs in {runs} begin with {name!r}"
        newest = ", ".join(run.id for run in matches[-5:])
        hint = f"give more of the id; the newest are {newest}"
    elif not existing:
        message = f"there are no runs in {runs}"
        hint = "submit one with: hpcdist submit ddp --local, or name their folder with --runs"
    elif name == "last":
        message = f"all runs in {runs} belong to other users"
    elif near := nearest(name, ["last", *(run.id for run in existing[-_MOST_COMPARED:])]):
        hint = f"did you mean {near}? {hint}"
    raise RunNotFoundError(message, hint=hint)


def holds_nodes(run: Run) -> bool:
    """Return whether a run is what `hpcdist dev` started."""
    is_named = run.id.startswith("dev-")
    return is_named and any(HOLDER in str(one) for one in run.spec.job.get("args", ()))


class Sweep:
    """One sweep's folder."""

    def __init__(self, path: Path) -> None:
        self.path, self.id = path, path.name
        self.cancel_file = path / "cancel"

    def run(self, index: int, num_points: int) -> Run:
        """Return the run of one point, there or not."""
        digits = max(3, len(str(num_points - 1)))
        return Run(self.path.parent / f"{self.id}-{index:0{digits}d}")

    def runs(self) -> list[Run]:
        """Return its runs that are there, in the order of the points; none is another user's."""
        is_of_it, owner = re.compile(re.escape(self.id) + r"-\d{3,}").fullmatch, owner_id(self.path)
        runs = [run for run in all_runs(self.path.parent) if is_of_it(run.id)]
        own = [run for run in runs if owner_id(run.path) == owner]
        return sorted(own, key=lambda run: int(run.id.rpartition("-")[2]))

    def write(self) -> None:
        """Mark the folder as a sweep's."""
        try:
            files.write_json(self.path / SWEEP_FILE, {"id": self.id})
        except OSError as error:
            raise cannot_write(self.path.parent, error) from None

    def ask_to_cancel(self) -> None:
        """Tell a command that runs the sweep on its machine to start no more of it."""
        files.write_whole(self.cancel_file, "")


def is_sweep(path: Path) -> bool:
    """Return whether a folder is a sweep's."""
    return os.path.isfile(path / SWEEP_FILE)


def find_runs(runs: Path, name: str) -> list[Run]:
    """Return the runs that a name, a run's or a sweep's, stands for; or raise RunNotFoundError."""
    named = find_named(runs, name)
    found = [named] if isinstance(named, Run) else named.runs()
    if not found:
        raise RunNotFoundError(
            f"sweep {named.id} has no runs: they were deleted",
            hint="list what is there with: hpcdist runs",
        )
    return found


def find_named(runs: Path, name: str) -> Run | Sweep:
    """Return what a name, or `last` for the last submission, stands for. Raises
    RunNotFoundError."""
    path = Path(name) if "/" in name else runs / name
    if name == "last":
        run = find_run(runs, name)
        path = runs / ((run.spec.sweep or SweepPlace()).id or run.id)
    elif "/" not in name and name and not is_sweep(path):
        # The one sweep that begins so, unless runs of others do too.
        begun = sorted(runs.glob(f"{glob.escape(name)}*"))
        if begun and all(one.name.startswith(begun[0].name) for one in begun):
            path = begun[0]
    return Sweep(path.absolute()) if is_sweep(path) else find_run(runs, name)


def check_own(path: Path, verb: str) -> None:
    """Raise RunDirectoryError for the directory of a run, or a sweep, of somebody else's."""
    if not is_own(path):
        owner = owner_name(owner_id(path))
        raise RunDirectoryError(
            f"{path} belongs to {owner}, and hpcdist {verb} is for its owner alone",
            hint="list the runs with: hpcdist runs",
        )


def created_ns(run: Run, spec: RunSpec | None = None) -> tuple[int, str]:
    """Return when a run was made, to sort by; from the directory where spec.json does not say."""
    created_s = (spec or run.spec).created_s
    if created_s is None:
        with suppress(OSError):  # deleted a moment ago
            created_s = run.path.stat().st_mtime
    return int((created_s or 0) * 1e9), run.id


def slug(name: str) -> str:
    """Return a job's name as a part of a path: ASCII letters, digits, dots and dashes only."""
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:40]
    return text or "job"


def cannot_write(runs: Path, error: OSError) -> RunDirectoryError:
    """Return the error for a folder of runs that cannot be made or written."""
    reason = "it is a file, not a folder" if runs.is_file() else error.strerror
    return RunDirectoryError(
        f"{runs}: the run directory cannot be written: {reason}",
        hint=f"free some space, or {_ANOTHER}" if error.errno in files.FULL else _ANOTHER,
    )


def make_runs_folder(runs: Path) -> None:
    """Make the folder of the runs, private to the user, where it is not there. Raises
    RunDirectoryError where strangers could change what is in it."""
    for _ in range(2):  # a umask may open what is made on the way
        if refused := refused_doors(runs):
            raise RunDirectoryError(
                f"{refused[0]}: what a job loads could be exchanged while it waits",
                hint=how_to_close(refused[0]),
            )
        try:
            runs.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        except FileExistsError:
            return  # whoever makes a run there says what it is
        except OSError as error:
            raise cannot_write(runs, error) from None


def refused_doors(runs: Path) -> list[Door]:
    """Return the ways by which strangers could change what is in the folder of the runs: it, or a
    folder above it, may be written by everybody, or it is somebody else's own."""
    own = {runs, Path(runs).resolve()}
    return [
        door
        for door in doors(runs)
        if door.who == "everyone" or (door.who == "owner" and door.path in own)
    ]


def how_to_close(door: Door) -> str:
    """Return what the user can do about a door."""
    if door.who == "owner":
        return f"{_ANOTHER} that is your own"
    right = "o" if door.who == "everyone" else "g"
    return f"close it with: chmod {right}-w {door.path}, or {_ANOTHER}"


def make_unique_folder(runs: Path, job_slug: str) -> Path:
    """Make a folder in `runs` that nothing else has: the job, the time, and a random tail."""
    try:
        runs.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        while True:
            tail = "".join(secrets.choice(_ID_LETTERS) for _ in range(4))
            path = runs / f"{job_slug}-{time.strftime('%Y%m%d-%H%M%S')}-{tail}"
            with suppress(FileExistsError):
                path.mkdir(mode=files.PRIVATE_FOLDER)
                return path
    except OSError as error:
        raise cannot_write(runs, error) from None


def delete_folder(folder: Path) -> None:
    """Delete the directory of a run or a sweep that is not needed; what cannot be deleted stays,
    and so does what somebody has put in its place who may write the folder of the runs."""
    with suppress(OSError):
        tree = measure_tree(folder)
        contents = (files.read_json(folder / name) for name in ("spec.json", "sweep.json"))
        if all(one.get("id") == folder.name for one in contents if isinstance(one, dict)):
            empty_tree(tree)
            folder.rmdir()


# What a submitted function returned.


def write_outcome(run: Run, rank: int, attempt: int, kind: str, value: Any) -> None:
    """Keep what a submitted function `returned` or `raised` in this rank, as a private file. A
    training does not fail for a result that cannot be pickled: why it is `lost` is kept. Raises
    OSError."""
    import cloudpickle

    try:
        data = cloudpickle.dumps((kind, value))
    except Exception as error:  # noqa: BLE001 - objects pickle themselves as they like
        sentence = f"a {type(value).__qualname__}, which cannot be pickled: {error}"
        data = pickle.dumps(("lost", sentence))
    path = run.outcome_file(rank, attempt)
    path.parent.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    files.write_whole(path, data)


def returned_by(run: Run, rank: int, verdict: Verdict) -> Any:
    """Return what one rank of an ended run returned.

    Raises RunFailedError where the run failed, from what was raised in the rank where that can be
    read; HpcdistError where the value cannot.
    """
    is_done, unread = verdict.state == "done", None
    if not is_done and verdict.first is not None:
        rank = verdict.first.rank
    try:
        with files.open_private(run.outcome_file(rank, verdict.attempt)) as file:
            kind, value = pickle.load(file)  # noqa: S301 - written by the user's own ranks
    except Exception as error:  # noqa: BLE001 - as above
        kind, value, unread = "lost", f"{type(error).__name__}: {error}", error
    if not is_done:  # the verdict has the text and the traceback in any case
        raise RunFailedError(run.id, verdict) from (value if kind == "raised" else None)
    if kind == "lost":
        hint = "return plain values, such as numbers, lists, dicts, and tensors that are on the CPU"
        message = f"rank {rank} of run {run.id} returned what cannot be read here: {value}"
        raise HpcdistError(message, hint=hint) from unread
    return value
