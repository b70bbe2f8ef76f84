"""A drill: a job runs undisturbed for some seconds, then things go wrong in it, each at a cost.

The command disturbs the run from outside: it starts `kill` and `prlimit` within the job, on the
node of a rank, as `hpcdist attach` would. The run itself is like all others, and its agents know
of no drill. A disturbance after which the job has ended is followed by `hpcdist resume`.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import EXIT_STOPPED, HpcdistError, SchedulerError, UserError
from hpcdist.base.progress import poll
from hpcdist.job.spec import JobSpec, OwnCodeJob, TrainingJob
from hpcdist.machine.command import run_command
from hpcdist.monitor.living import find_rank
from hpcdist.monitor.progress import waiting_sentence
from hpcdist.monitor.states import EndWatch, wait_until_gone
from hpcdist.runs.events import read_events
from hpcdist.runs.run import Run, name_to_type
from hpcdist.runs.verdict import Verdict
from hpcdist.submission.plan import PlannedRun, PlannedSubmission
from hpcdist.submission.resume import look_at, plan_resume, resume
from hpcdist.submission.submit import submit
from hpcdist.training.checkpoint.files import SUFFIXES, list_saved

NAMES = ("kill-rank", "time-limit", "kill-agent", "full-disk", "damage")
"""All disturbances, in their order: what may end the run for good comes last."""

_SETTLE_S = 0.4
"""Work between a new checkpoint and the disturbance: something is to be lost."""
_SHARE = 0.15
"""Part of a drill's time for the undisturbed run, and for each wait for what may never come."""
_CERTAIN_S = 60.0
"""Wait for what is certain to come: the first step of a job that records some."""
_BETWEEN_SAVES_S = 0.8
_LEAST_START_S = 15.0
_SENTENCES = {
    "kill-rank": "the last rank is killed",
    "time-limit": "the ranks are warned of the time limit",
    "kill-agent": "the agent of the last node is killed",
    "full-disk": "the disk is full for rank 0",
    "damage": "the newest checkpoint is damaged, and the last rank killed",
}

_ON_CHECKPOINTS = ("full-disk", "damage")
_TOO_SHORT = "give the drill more time (--for), or have the job save more often"
_HOW_TO_LOAD = (
    "started from the beginning (load the newest one at the start: HPCDIST_RUN_DIR is the same in "
    "every attempt)"
)
_HOW_TO_STOP = (
    "the job is not started again (call record.should_stop() after each step, or handle SIGUSR2, "
    "and exit with code 75)"
)
_FALL_BACK = "; let it fall back to the previous checkpoint, which is whole"
_ONE_IS_GONE = (
    "; its one checkpoint is gone, with {}: write to another name and os.replace() it, and keep "
    "the last two"
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A drill that somebody wants."""

    job: JobSpec
    """As the user has it."""
    plan: Callable[[Sequence[str]], PlannedRun]
    """Plans the job with these keys changed, from the working directory."""
    names: Sequence[str]
    budget_s: float
    folder: Path
    """The folder of all that the drill makes."""
    say: Callable[[str], None]
    check: Callable[[], None]
    """Called between looks; may raise, which ends the runs."""


class Course(NamedTuple):
    """The steps of one attempt, as rank 0 recorded them."""

    resumed_step: int | None = None
    """Step of the checkpoint that a trainer loaded."""
    first_step: int | None = None
    """Number of steps before its own first; None where it recorded none."""
    last_step: int | None = None
    step_time_s: float | None = None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one disturbance."""

    name: str
    verdict: str | None = None
    """Kind of the verdict; None: nothing ended."""
    went_on: str = "-"
    """The place where the job went on, in words; `-`: not known; `not tried`."""
    lost_steps: int | None = None
    """Number of steps to be done again; None where the job records none."""
    down_s: float | None = None
    """Seconds until the ranks worked again; 0 where they never stopped."""
    is_work_lost: bool = False
    advice: str | None = None


def conduct(request: Request) -> list[Cost]:
    """Run the job undisturbed, and then disturbed; return the costs.

    Raises HpcdistError where the job has nothing to lose, or fails by itself.
    """
    if not isinstance(request.job, TrainingJob | OwnCodeJob):
        raise UserError(
            f"a drill is for trainings and for your own code; {request.job.name} "
            f"({request.job.workload}) has no work to lose",
            hint="name a training, a script or a module",
        )
    reference_s = request.budget_s * _SHARE
    request.say(f"undisturbed, for {reference_s:.0f} s")
    with _work_folder(request, "undisturbed") as folders:
        planned = request.plan(_settings(request.job, None))
        if not planned.scheduler.can_enter:
            raise UserError(
                f"a drill disturbs its job from within; {planned.scheduler.title} cannot do that",
                hint="run the drill with --local",
            )
        reference = _DisturbedRun(request, planned, folders)
        with reference.ended():
            reference.wait_for_work(0)
            reference.wait(lambda: False, reference_s)
        undisturbed, has_saved = read_course(reference.run, 0), bool(reference.saved())
    verdict = reference.verdict
    if verdict is not None and verdict.state == "failed":
        raise HpcdistError(
            f"the job fails undisturbed, so there is nothing to disturb: {verdict.message}",
            hint=f"see hpcdist logs {name_to_type(reference.run.path)}",
        )
    with _work_folder(request, "disturbed") as folders:
        planned = request.plan(_settings(request.job, undisturbed))
        disturbed = _DisturbedRun(request, planned, folders)
        disturbed.records_steps = undisturbed.first_step is not None
        disturbed.shows_work = disturbed.records_steps or has_saved
        with disturbed.ended():
            return [_try(request.job, disturbed, name, undisturbed) for name in request.names]


def read_course(run: Run, attempt: int) -> Course:
    """Return what rank 0 recorded of an attempt so far."""
    events: list[dict[str, Any]] = []
    with suppress(OSError):
        files.refresh(run.events_folder)
        events = read_events(run.event_file(0, attempt))
    windows = [event for event in events if event["event"] == "steps"]
    resumed = next((event["step"] for event in events if event["event"] == "resume"), None)
    if not windows:
        return Course(resumed_step=resumed)
    return Course(
        resumed_step=resumed,
        first_step=windows[0]["step"] - windows[0]["steps"],
        last_step=windows[-1]["step"],
        step_time_s=median(event["wall_s"] / max(1, event["steps"]) for event in windows),
    )


class _DisturbedRun:
    """One run of a drill: waiting for what it does, and disturbing it."""

    def __init__(self, request: Request, planned: PlannedRun, folders: Sequence[Path]) -> None:
        """Submit the run; `folders` are those that the drill has made for it."""
        planned.prepare()
        submission = PlannedSubmission.of_run(planned)
        (self.run,) = submit(submission, runs=request.folder).runs
        self.verdict: Verdict | None = None
        """Why the run ended; None while it goes on."""
        self.records_steps = isinstance(request.job, TrainingJob)
        self.shows_work = True
        """It records steps, or saves checkpoints."""
        self.patience_s = request.budget_s * _SHARE
        self._request = request
        self._own_folders = [self.run.path, *folders]
        self._scheduler = planned.scheduler
        self._watch = EndWatch([self.run])
        self._waited: str | None = None
        self._former: dict[Path, int] = {}
        self._former = self.saved()

    @contextmanager
    def ended(self) -> Iterator[None]:
        """End the run after the block, whatever happens in it."""
        try:
            yield
        finally:
            if self.verdict is None:
                try:
                    self._scheduler.cancel([self.run])
                except SchedulerError as error:  # what was seen until then counts
                    self._request.say(error.message)
                wait_until_gone(self.run, with_job=True)

    def wait(self, is_over: Callable[[], bool], limit_s: float | None) -> bool:
        """Wait until something is over, the run has ended, or the limit is reached; return whether
        it is over."""

        def look() -> bool | None:
            self._request.check()
            if is_over():
                return True
            self.verdict = self.verdict or self._watch.look().get(self.run.id)
            if self.verdict is not None:
                return is_over()
            waiting = waiting_sentence(self._watch.conditions[self.run.id])
            if waiting not in {None, self._waited}:
                self._waited = waiting
                self._request.say(f"the job is pending: {waiting}")
            return None

        return bool(poll(look, interval_s=0.2, limit_s=limit_s))

    def wait_for_work(self, attempt: int) -> bool:
        """Wait until an attempt has recorded a step, or has saved a checkpoint; return whether it
        did. A job that shows neither works if it does not end."""
        self.wait(lambda: self.run.newest_attempt() >= attempt, None)
        if not self.shows_work:
            self.wait(lambda: False, self.patience_s)
            return self.verdict is None and self.run.newest_attempt() == attempt
        before = self.saved()

        def works() -> bool:
            has_step = read_course(self.run, attempt).first_step is not None
            return has_step or (not self.records_steps and self.saved() != before)

        least_s = _CERTAIN_S if self.records_steps else _LEAST_START_S
        return self.wait(works, max(self.patience_s, least_s))

    def saved(self) -> dict[Path, int]:
        """Return the files of checkpoints that the run has written, oldest first, each with the
        time at which it was written, in ns."""
        saved: dict[Path, int] = {}
        for folder in self._own_folders:
            saved |= list_saved(folder)
        written = {path: time for path, time in saved.items() if self._former.get(path) != time}
        return dict(sorted(written.items(), key=lambda each: each[1]))

    def newest_checkpoint(self) -> Path | None:
        """Return the newest checkpoint; of one in parts, the largest."""
        newest = [*self.saved()][-1:]
        parts = [part for path in newest for part in path.parent.glob("*.distcp")]
        return max([*newest, *parts], key=lambda part: part.stat().st_size, default=None)

    def disturb(self, name: str, checkpoint: Path) -> bool:
        """Disturb the run, and wait for what ends by it; return whether the ranks have ended."""
        job, attempt = self._request.job, self.run.newest_attempt()
        rank = find_rank(self.run, job.num_ranks - 1, attempt)
        agent = files.read_json(self.run.agent_file(job.resources.nodes - 1)) or {}
        agent_pid = str(agent["process"]["pid"])
        step = read_course(self.run, attempt).last_step
        self._request.say(_SENTENCES[name] + ("" if step is None else f" after step {step}"))

        def has_ended() -> bool:
            return self.verdict is not None or self.run.newest_attempt() > attempt

        if name == "kill-agent":
            with suppress(SchedulerError):  # the command may end with the job
                self._start(rank.host, "kill", "-9", agent_pid)
        elif name == "time-limit":
            _, plan, _ = self.run.read_launch()
            number = signal.Signals[plan.warning_signals[0]].value
            self._start(rank.host, "kill", f"-{number}", agent_pid)
            if not self.wait(has_ended, min(job.launch.warning_s, self.patience_s)):
                self._scheduler.cancel([self.run])  # as the limit would end it
        elif name == "full-disk":
            first = find_rank(self.run, 0, attempt)
            limit = max(1, checkpoint.stat().st_size // 2)
            self._start(first.host, "prlimit", f"--pid={first.pid}", f"--fsize={limit}:")
            if not self.wait(has_ended, max(self.patience_s, 8.0)):
                self._start(first.host, "prlimit", f"--pid={first.pid}", "--fsize=unlimited:")
                return False
        else:
            if name == "damage":
                os.truncate(checkpoint, checkpoint.stat().st_size // 2)
            self._start(rank.host, "kill", "-9", str(rank.pid))
        self.wait(has_ended, None)
        return True

    def _start(self, host: str, *command: str) -> None:
        """Start a command within the job, on one of its nodes."""
        argv = self._scheduler.enter(self.run, host, command, is_terminal=False)
        run_command(argv, timeout_s=_CERTAIN_S)

    def resume(self) -> Verdict | None:
        """Start the next life of a run that has ended, but not of one that is done; return why it
        ended, None where it goes on."""
        verdict = self.verdict
        if verdict is not None and verdict.state != "done":
            ended = look_at(self.run)
            resume(self.run, ended, plan_resume(self.run, ended, {}))
            self.verdict, self._watch = None, EndWatch([self.run])
        return verdict


def _try(job: JobSpec, disturbed: _DisturbedRun, name: str, undisturbed: Course) -> Cost:
    """Disturb the run once, have it work again, and return what that cost."""
    run = disturbed.run
    if disturbed.verdict is None:
        disturbed.wait_for_work(max(0, run.newest_attempt()))
        before, is_trainer = disturbed.saved(), isinstance(job, TrainingJob)
        limit_s = _CERTAIN_S if is_trainer else disturbed.patience_s
        disturbed.wait(lambda: disturbed.saved() != before, limit_s)
        disturbed.wait(lambda: False, _SETTLE_S)
    checkpoint, why = disturbed.newest_checkpoint(), None
    if disturbed.verdict is not None:
        why = f"the run had ended before: {disturbed.verdict.sentence}"
    elif checkpoint is None and name in _ON_CHECKPOINTS:
        why = "the job had saved no checkpoint by then"
    if why is not None:
        return Cost(name=name, went_on="not tried", advice=why)
    attempt, num_saved = run.newest_attempt(), len(disturbed.saved())
    begin_s = time.monotonic()
    if not disturbed.disturb(name, checkpoint or run.path):
        return Cost(
            name=name,
            went_on="did not stop",
            lost_steps=0,
            down_s=0.0,
            advice="the job continued, but saved nothing while the disk was full",
        )
    verdict = disturbed.resume() or run.read_attempt_verdict(attempt)
    works = disturbed.wait_for_work(attempt + 1)
    again = run.read_verdict() or run.read_attempt_verdict(attempt + 1)
    return judge(
        job,
        name,
        verdict,
        courses=(undisturbed, read_course(run, attempt), read_course(run, attempt + 1)),
        num_saved=num_saved,
        down_s=time.monotonic() - begin_s if works else None,
        failure=again.message if again is not None and not works else None,
    )


def judge(
    job: JobSpec,
    name: str,
    verdict: Verdict | None,
    *,
    courses: tuple[Course, Course, Course],
    num_saved: int,
    down_s: float | None,
    failure: str | None,
) -> Cost:
    """Return the cost of a disturbance after which the ranks had to be started again. Pure.

    A job has lost work where it began again though it had saved, where it could not be started
    again, or where it never saved. `courses` are those of the undisturbed run, of the attempt that
    was disturbed, and of the next one. `down_s` is None where the ranks did not work again, and
    `failure` says why, where they failed.
    """
    undisturbed, before, after = courses
    begun = undisturbed.first_step or 0
    records = undisturbed.first_step is not None
    step = after.first_step if after.resumed_step is None else after.resumed_step
    is_start = step is None or (after.resumed_step is None and step <= begun)
    limit_min = job.resources.time_limit_min
    up_to = "all work until then" if limit_min is None else f"up to {limit_min / 60:.3g} h"
    went_on, lost_steps, advice, is_lost = "-", None, None, True
    if down_s is not None and records:
        lost_steps = max(0, (before.last_step or 0) - (begun if is_start else step or 0))
        went_on = "the start" if is_start else f"step {step}"
    if failure is not None:
        went_on, advice = "failed again", f"started again, it failed: {failure}"
        if name in _ON_CHECKPOINTS:
            is_lost = num_saved <= 1
            advice += _ONE_IS_GONE.format(up_to) if is_lost else _FALL_BACK
    elif down_s is None:
        is_lost, advice = False, f"the drill ended before the job continued: {_TOO_SHORT}"
    elif name == "time-limit" and (verdict is None or verdict.exit_code != EXIT_STOPPED):
        lost = "the work since the last one" if num_saved else up_to
        advice = f"no checkpoint is saved on the warning: you would lose {lost}, and {_HOW_TO_STOP}"
    elif not num_saved and (is_start or not records):
        advice = f"no checkpoint is saved: you would lose {up_to}"
    elif records and is_start:
        advice = f"it saves checkpoints, but {_HOW_TO_LOAD}: you would lose {up_to}"
    else:
        is_lost = False
    return Cost(
        name=name,
        verdict=None if verdict is None else verdict.kind,
        went_on=went_on,
        lost_steps=lost_steps,
        down_s=down_s,
        is_work_lost=is_lost,
        advice=advice,
    )


def _settings(job: JobSpec, undisturbed: Course | None) -> list[str]:
    """Return the keys that a drill sets: those of the undisturbed run, or with what it showed."""
    keys = ["launch.requeue=false", "launch.max_restarts=10", "resources.time_limit_min=15"]
    keys.append("record.window_s=0.001")
    if isinstance(job, TrainingJob):
        every = 0
        if undisturbed is not None and undisturbed.step_time_s:
            every = max(1, round(_BETWEEN_SAVES_S / undisturbed.step_time_s))
            every = min(every, job.checkpoint.every_steps or every)
        keys += [
            *("train.epochs=100000", "train.max_steps=null", "checkpoint.every_epochs=0"),
            f"checkpoint.every_steps={every}",
        ]
    return keys


@contextmanager
def _work_folder(request: Request, name: str) -> Iterator[list[Path]]:
    """Work in a copy of the working directory: a script may overwrite in it what real runs have
    saved there. Trainers save in their run directory alone. Large files that are no checkpoints
    become links."""
    if not isinstance(request.job, OwnCodeJob):
        yield []
        return
    before, place = Path.cwd(), request.folder / name

    def copy(source: str, target: str) -> None:
        is_large = os.path.getsize(source) > 1_000_000
        is_linked = is_large and not source.endswith(SUFFIXES)
        (os.symlink if is_linked else shutil.copy2)(source, target)

    def leave_out(folder: str, names: list[str]) -> list[str]:
        of_drill = (name for name in names if request.folder.is_relative_to(Path(folder, name)))
        return [*of_drill, *(name for name in names if name.startswith("."))]

    shutil.copytree(before, place, symlinks=True, copy_function=copy, ignore=leave_out)
    place.chmod(files.PRIVATE_FOLDER)
    try:
        os.chdir(place)
        yield [place]
    finally:
        os.chdir(before)
