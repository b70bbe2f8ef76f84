"""The course of a drill: an undisturbed run of the job, and one that is disturbed in several lives.

Disturbances after which the ranks are started again share a life. One that ends the job ends its
life, and the next one goes on from what the job has saved, as `hpcdist resume` does. The runs are
like all others, in a folder of their own which nothing looks into that was not told to.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, UserError
from hpcdist.base.text import first_few
from hpcdist.drill.attempts import Attempt, read_attempts
from hpcdist.drill.findings import Evidence, Trouble
from hpcdist.job.spec import JobSpec, OwnCodeJob, ProgramJob, ScriptJob, TrainingJob
from hpcdist.monitor.ends import EndWatch, wait_until_free
from hpcdist.monitor.nodes import waiting_sentence
from hpcdist.monitor.progress import RunningRun
from hpcdist.runs.drill import (
    JournalEntry,
    find_saved,
    is_checkpoint_name,
    journal_file,
    read_journal,
)
from hpcdist.runs.events import EventWriter
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Disturbance, DisturbanceName, DrillPlan
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers import load_scheduler
from hpcdist.submission.plan import PlannedRun, PlannedSubmission
from hpcdist.submission.resume import look_at, plan_resume, resume
from hpcdist.submission.submit import submit

NAMES: tuple[DisturbanceName, ...] = (
    *("kill-rank", "slow-rank", "stop-rank", "warning", "kill-agent", "fill-disk", "damage"),
)
"""All that a drill does, in its order: what may end the whole run comes last."""
_ENDING = frozenset({"warning", "kill-agent"})
"""Disturbances after which the job has ended, and another one must be submitted."""

_POLL_S = 0.2
_REFERENCE_SHARE = 0.1
_PATIENCE_SHARE = 0.07
"""Parts of the time of a drill: the undisturbed run, and the wait for a checkpoint."""
_START_S = 30.0
"""The longest wait for the first step of a script that may record some."""
_CERTAIN_S = 60.0
"""The same of a job that does, and for a checkpoint of a trainer, which is told to save."""
_SAVING = re.compile(r"save|checkpoint|trainer|fabric", re.IGNORECASE)
_STOPPING = re.compile(r"should_stop|SIGUSR2")
_RECORDING = re.compile(r"record|lightning|fabric", re.IGNORECASE)
_IMPORT = re.compile(r"^\s*(?:from|import)\s+([\w.]+)(?:\s+import\s+\(?([\w, ]+))?", re.MULTILINE)
_WORD = re.compile(r"\w+")
_MOST_TEXTS = 2000
_PATIENCE_OF_SHORT = 0.35
"""The same as a part of a job that is done before."""
_BETWEEN_SAVES_S = 0.8
_SLOW_S = 4.0
_STOPPED_S = 3.0
_LEAST_FULL_S = 8.0
_END_S = 1.0
_LEAST_HANG_S = 3.0
_MOST_HANG_S = 30.0
_GAPS = 3.0
"""A hang is so much longer than the longest time without a step of the undisturbed run."""
_MOST_EPOCHS = 100_000
_MOST_COPIED_BYTES = 1_000_000
_MOST_CHECKPOINT_BYTES = 4_000_000_000
_MOST_COPIED_ENTRIES = 10_000
_STEPS_BETWEEN_DIGESTS = 20
_LIMIT_MIN = 15
_MAX_RESTARTS = 3
"""In a life: of two disturbances, and one more for a job that fails by itself after one."""
_LIMIT_SHARE = 2.0
"""Of the time of the drill: after it a life is ended, whatever it does."""

Plan = Callable[[Sequence[str]], PlannedRun]
"""Plans the job with these keys changed, from the working directory."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A drill that somebody wants."""

    job: JobSpec
    """As the user has it."""
    plan: Plan
    names: Sequence[DisturbanceName]
    budget_s: float
    folder: Path
    """For all that the drill makes."""
    folders: Sequence[str]
    """Where the job saves checkpoints, besides its working and its run directory."""
    command: Sequence[str]
    say: Callable[[str], None]
    check: Callable[[], None]
    """Called between looks; may raise, which ends the runs."""


def check(job: JobSpec) -> None:
    """Raise UserError for a job that has nothing to lose."""
    if not isinstance(job, TrainingJob | OwnCodeJob):
        raise UserError(
            f"a drill is for trainings and for your own code; {job.name} ({job.workload}) has no "
            "work to lose",
            hint="name a training, a script or a module",
        )


def conduct(request: Request) -> tuple[Evidence, float]:
    """Run the job undisturbed, and then disturbed; return what that left, and the seconds that it
    took. Raises HpcdistError where the job fails by itself."""
    begin_s = time.monotonic()
    text = _program_text(request.job)
    may_record = text is not None and _RECORDING.search(text) is not None
    start_s = _START_S if may_record else None
    is_trainer = isinstance(request.job, TrainingJob)
    reference = _run_undisturbed(request, _CERTAIN_S if is_trainer else start_s)
    undisturbed = read_attempts(reference)[0]
    patience_s = request.budget_s * _PATIENCE_SHARE
    if undisturbed.is_done and undisturbed.worked_s is not None:
        patience_s = min(patience_s, undisturbed.worked_s * _PATIENCE_OF_SHORT)
    if is_trainer:
        patience_s = _CERTAIN_S
    start_s = undisturbed.start_s and max(_CERTAIN_S, _GAPS * undisturbed.start_s)
    troubles: list[Trouble] = []
    run: Run | None = None
    with _work_folder(request, "disturbed") as work_folder:
        for life in _lives(request, undisturbed):
            drill = DrillPlan(
                disturbances=life,
                patience_s=patience_s,
                start_s=start_s,
                work_folder=work_folder,
                folders=list(request.folders),
            )
            if run is None:
                planned = request.plan(_settings(request.job, undisturbed))
                run = _submit(request, planned, drill)
            else:
                request.say("the run is resumed")
                ended = look_at(run)
                resume(run, ended, plan_resume(run, ended, {}), drill=drill)
            if _follow(request, run, drill, troubles=troubles).state == "done":
                break
    assert run is not None
    evidence = Evidence(
        job=request.job,
        undisturbed=undisturbed,
        attempts=read_attempts(run),
        journal=read_journal(run),
        troubles=troubles,
        undisturbed_run=str(reference.path),
        disturbed_run=str(run.path),
        may_save=text is None or _SAVING.search(text) is not None,
        may_stop=text is not None and _STOPPING.search(text) is not None,
    )
    return evidence, time.monotonic() - begin_s


def _run_undisturbed(request: Request, start_s: float | None) -> Run:
    """Run the job for a while as it is; return its run. Raises HpcdistError where it fails."""
    reference_s = request.budget_s * _REFERENCE_SHARE
    request.say(f"undisturbed, for {reference_s:.0f} s")
    with _work_folder(request, "undisturbed") as work_folder:
        drill = DrillPlan(
            disturbances=[Disturbance(name="end", hold_s=reference_s)],
            patience_s=request.budget_s * _PATIENCE_SHARE,
            start_s=start_s,
            work_folder=work_folder,
        )
        planned = request.plan(_settings(request.job, None))
        if not planned.scheduler.shares_files:
            raise UserError(
                f"a drill watches the directory of its run, which nodes of "
                f"{planned.scheduler.title} do not share",
                hint="run the drill with --local",
            )
        run = _submit(request, planned, drill)
        verdict = _follow(request, run, drill, troubles=[])
    if verdict.state == "failed":
        raise HpcdistError(
            f"the job fails undisturbed, so there is nothing to disturb: {verdict.message}",
            hint=f"see hpcdist logs {run.path}",
        )
    return run


# What is asked of the job.


def _settings(job: JobSpec, found: Attempt | None) -> list[str]:
    """Return the keys that a drill sets: those of the undisturbed run, or with what it showed."""
    keys = [
        "launch.requeue=false",
        f"launch.max_restarts={_MAX_RESTARTS}",
        f"resources.time_limit_min={_LIMIT_MIN}",
        "record.window_s=0.001",
        f"record.digest={_STEPS_BETWEEN_DIGESTS}",
    ]
    if isinstance(job, TrainingJob):
        every = 0 if found is None else _steps_between(job, found)
        keys += [
            f"train.epochs={_MOST_EPOCHS}",
            "train.max_steps=null",
            "checkpoint.every_epochs=0",
            f"checkpoint.every_steps={every}",
        ]
    hang_s = None if found is None else hang_timeout_s(job, found)
    if hang_s is not None:
        keys.append(f"launch.hang_timeout_s={hang_s:.0f}")
    return keys


def _steps_between(job: TrainingJob, found: Attempt) -> int:
    every = max(1, round(_BETWEEN_SAVES_S / (found.step_time_s or _BETWEEN_SAVES_S)))
    return min(every, job.checkpoint.every_steps or every)


def hang_timeout_s(job: JobSpec, found: Attempt) -> float | None:
    """Return the time without a step after which a drill has a run ended; None where the job has
    no such time, or it would be too long to wait for."""
    own_s = job.launch.hang_timeout_s
    if own_s == 0 or (own_s is None and isinstance(job, OwnCodeJob)) or found.longest_gap_s is None:
        return None
    wanted_s = max(_LEAST_HANG_S, _GAPS * found.longest_gap_s)
    wanted_s = wanted_s if own_s is None else min(wanted_s, own_s)
    return wanted_s if wanted_s <= _MOST_HANG_S else None


def _lives(request: Request, found: Attempt) -> Iterator[list[Disturbance]]:
    hang_s = hang_timeout_s(request.job, found)
    hold_s = {
        "slow-rank": _SLOW_S,
        "stop-rank": _STOPPED_S if hang_s is None else 2 * hang_s + _STOPPED_S,
        "fill-disk": max(_LEAST_FULL_S, request.budget_s * _PATIENCE_SHARE),
        "warning": request.job.launch.warning_s,
    }
    life: list[Disturbance] = []
    for name in request.names:
        life.append(Disturbance(name=name, hold_s=hold_s.get(name, 0.0)))
        if name in _ENDING:
            yield life
            life = []
    yield [*life, Disturbance(name="end", hold_s=_END_S)]


def _program_text(job: JobSpec) -> str | None:
    """Return the text of the program and of what it imports that is the user's own; None of one
    that is not Python's."""
    if not isinstance(job, ScriptJob) or isinstance(job, ProgramJob):
        return None
    waiting, texts = [Path(job.script)], dict[Path, str]()
    while waiting and len(texts) < _MOST_TEXTS:
        path = waiting.pop()
        if path.is_dir():
            waiting += path.glob("*.py")
        elif path not in texts and path.is_file() and path.stat().st_size < _MOST_COPIED_BYTES:
            texts[path] = path.read_text(errors="replace")
            folders = {Path.cwd(), Path(job.script).parent, *islice(path.parents, 3)}
            for first, inner in _IMPORT.findall(texts[path]):
                names = first.strip(".").replace(".", "/")
                found = [folder / names for folder in folders]
                found += [each / name for each in found for name in _WORD.findall(inner)]
                waiting += [each.with_suffix(".py") for each in found]
                waiting += [each / "__init__.py" for each in found if names]
    return "\n".join(texts.values())


# Where it works.


@contextmanager
def _work_folder(request: Request, name: str) -> Iterator[str | None]:
    """Work in a copy of the working directory: a script may overwrite in it what real runs have
    saved there. Trainers save in their run directory alone."""
    before = os.getcwd()
    if not isinstance(request.job, OwnCodeJob):
        yield None
        return
    place = request.folder / name
    left_out = _copy(Path(before), place, without=request.folder)
    if left_out:
        request.say(f"not copied, because it is large: {first_few(left_out)}")
    try:
        os.chdir(place)
        yield str(place)
    finally:
        os.chdir(before)


def _copy(source: Path, target: Path, *, without: Path) -> list[str]:
    """Copy a folder, of which large files, hidden folders and those of too many become links.
    Return what is missing: large checkpoints, which must not be written to by a link."""
    num_left, bytes_left = _MOST_COPIED_ENTRIES, _MOST_CHECKPOINT_BYTES
    left_out: list[str] = []
    target.mkdir(mode=files.PRIVATE_FOLDER, parents=True)
    waiting = [(source, target)]
    while waiting:
        from_, to = waiting.pop()
        for path in sorted(from_.iterdir()):
            new, is_hidden = to / path.name, path.name.startswith(".")
            size = path.stat().st_size if path.is_file() else None
            is_large = size is not None and size > _MOST_COPIED_BYTES
            if without.is_relative_to(path):
                continue
            if path.is_dir() and not (path.is_symlink() or is_hidden):
                if (number := len(os.listdir(path))) <= num_left:
                    num_left -= number
                    new.mkdir(mode=files.PRIVATE_FOLDER)
                    waiting.append((path, new))
                    continue
            elif size is not None and (not is_large or is_checkpoint_name(path.name)):
                if is_large and size > bytes_left:
                    left_out.append(str(path))
                    continue
                bytes_left -= size if is_large else 0
                shutil.copy2(path, new)
                continue
            new.symlink_to(path)
    return left_out


# Its runs.


def _submit(request: Request, planned: PlannedRun, drill: DrillPlan) -> Run:
    planned.prepare()
    submission = PlannedSubmission.of_run(planned)
    (run,) = submit(submission, runs=request.folder, command=request.command, drill=drill).runs
    return run


def _follow(request: Request, run: Run, drill: DrillPlan, *, troubles: list[Trouble]) -> Verdict:
    """Wait for the end of a life, and note meanwhile what there is to see; end it when the drill
    is over, and when this is interrupted."""
    scheduler = load_scheduler(str(run.read_scheduler()))
    watch, live = EndWatch([run]), RunningRun(run)
    num_told = len(read_journal(run))
    shown: list[str] = []
    waited: str | None = None
    end_s: float | None = None

    def look() -> None:
        nonlocal num_told, waited, end_s
        request.check()
        waiting = waiting_sentence(watch.conditions[run.id])
        if waiting not in {None, waited}:
            waited = waiting
            request.say(f"the job is pending: {waiting}")
        entries = read_journal(run)
        for entry in entries[num_told:]:
            if (sentence := progress_sentence(entry)) is not None:
                request.say(sentence)
            if entry.name == "end":
                scheduler.cancel([run])
        num_told = len(entries)
        if (seen := live.look()) is not None:
            new = [one for one in seen.troubles if one not in shown]
            troubles.extend(Trouble(time.time(), one) for one in new)
            shown[:] = seen.troubles
            end_s = end_s or time.monotonic() + _LIMIT_SHARE * request.budget_s
        if end_s is not None and time.monotonic() > end_s:
            request.say("the run takes too long and is ended")
            scheduler.cancel([run])

    try:
        verdict = watch.wait(check=look, interval_s=_POLL_S)[run.id]
    except BaseException:
        scheduler.cancel([run])
        raise
    wait_until_free(run)
    EventWriter(journal_file(run)).write(
        "life", attempt=run.newest_attempt(), saved=msgspec.to_builtins(find_saved(run, drill))
    )
    return verdict


def progress_sentence(entry: JournalEntry) -> str | None:
    """Return what to tell the user while the drill goes on."""
    step = "" if entry.step is None else f" after step {entry.step}"
    sentences: dict[DisturbanceName | None, str] = {
        "kill-rank": f"rank {entry.rank} is killed{step}",
        "slow-rank": f"rank {entry.rank} is slowed down{step}",
        "stop-rank": f"rank {entry.rank} is stopped{step}",
        "fill-disk": f"the disk of the checkpoints is full{step}",
        "warning": f"the ranks are warned of the time limit{step}",
        "kill-agent": f"the agent of node {entry.node} is killed{step}",
        "damage": f"the newest checkpoint is damaged, and rank {entry.rank} killed{step}",
    }
    return sentences.get(entry.name) if entry.event == "disturb" else None
