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
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import EXIT_STOPPED, HpcdistError, SchedulerError, UserError
from hpcdist.base.polling import poll
from hpcdist.base.text import number_of, show_time
from hpcdist.job.spec import JobSpec, OwnCodeJob, TrainingJob
from hpcdist.machine.command import run_command
from hpcdist.monitor.ends import EndWatch, wait_until_free
from hpcdist.monitor.nodes import waiting_sentence
from hpcdist.monitor.requests import find_rank
from hpcdist.runs.events import read_events
from hpcdist.runs.run import Run, name_to_type
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers import load_scheduler
from hpcdist.submission.plan import PlannedRun, PlannedSubmission
from hpcdist.submission.resume import look_at, plan_resume, resume
from hpcdist.submission.submit import submit
from hpcdist.training.checkpoint.files import SUFFIXES, list_saved

NAMES = ("kill-rank", "time-limit", "kill-agent", "full-disk", "damage")
"""All disturbances, in their order: what may end the run for good comes last."""

_POLL_S = 0.2
_SETTLE_S = 0.4
"""Work between a new checkpoint and the disturbance: something is to be lost."""
_REFERENCE_SHARE = 0.15
_PATIENCE_SHARE = 0.15
"""Parts of the time of a drill: the undisturbed run, and each wait for what may never come."""
_CERTAIN_S = 60.0
"""Wait for what is certain to come: the first step of a job that records some."""
_COMMAND_S = 60.0
_BETWEEN_SAVES_S = 0.8
_LEAST_START_S = 15.0
_LEAST_FULL_S = 8.0
_MAX_RESTARTS = 10
_LIMIT_MIN = 15
_SAME = 1e-6
"""Relative difference of losses that are the same."""
_MOST_COPIED_BYTES = 1_000_000
_SENTENCES = {
    "kill-rank": "the last rank is killed",
    "time-limit": "the ranks are warned of the time limit",
    "kill-agent": "the agent of the last node is killed",
    "full-disk": "the disk is full for rank 0",
    "damage": "the newest checkpoint is damaged, and the last rank killed",
}

_TOO_SHORT = "give the drill more time (--for), or have the job save more often"
_HOW_TO_LOAD = "load the newest one at the start: HPCDIST_RUN_DIR is the same in every attempt"
_HOW_TO_STOP = "call record.should_stop() after each step, or handle SIGUSR2, and exit with code 75"


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
    folders: Sequence[str]
    """Folders in which the job saves checkpoints, besides its working and its run directory."""
    command: Sequence[str]
    say: Callable[[str], None]
    check: Callable[[], None]
    """Called between looks; may raise, which ends the runs."""


class Course(NamedTuple):
    """The steps of one attempt, as rank 0 recorded them."""

    resumed_step: int | None
    """Step of the checkpoint that a trainer loaded."""
    first_step: int | None
    """Number of steps before its own first; None where it recorded none."""
    last_step: int | None
    losses: dict[int, float]
    """By step."""
    step_time_s: float | None
    steps_per_epoch: int | None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one disturbance."""

    name: str
    verdict: str | None = None
    """Kind of the verdict; None: nothing ended."""
    is_verdict_right: bool | None = None
    """None: none was due."""
    went_on: str = "-"
    """The place where the job went on, in words; `-`: not known; `not tried`."""
    lost_steps: int | None = None
    """Number of steps to be done again; None where the job records none."""
    down_s: float | None = None
    """Seconds until the ranks worked again; 0 where they never stopped."""
    loss: str = "-"
    """Against the undisturbed run: `same`, or how far off at most, relative to it."""
    is_work_lost: bool = False
    advice: str | None = None

    @property
    def is_well(self) -> bool:
        """Nothing is to be looked into."""
        was_tried = self.went_on != "not tried"
        return was_tried and not self.is_work_lost and self.loss in {"-", "same"}


def check(job: JobSpec) -> None:
    """Raise UserError for a job that has nothing to lose."""
    if not isinstance(job, TrainingJob | OwnCodeJob):
        raise UserError(
            f"a drill is for trainings and for your own code; {job.name} ({job.workload}) has no "
            "work to lose",
            hint="name a training, a script or a module",
        )


def conduct(request: Request) -> tuple[list[Cost], list[str], list[Run]]:
    """Run the job undisturbed, and then disturbed; return the costs, remarks, and the two runs.

    Raises HpcdistError where the job fails by itself.
    """
    reference_s = request.budget_s * _REFERENCE_SHARE
    request.say(f"undisturbed, for {reference_s:.0f} s")
    with _work_folder(request, "undisturbed") as folders:
        planned = request.plan(_settings(request.job, None))
        if not planned.scheduler.shares_files:
            raise UserError(
                f"a drill watches the directory of its run, which nodes of "
                f"{planned.scheduler.title} do not share",
                hint="run the drill with --local",
            )
        reference = _DisturbedRun(request, _submit(request, planned), folders)
        with reference.ended():
            reference.wait_for_work(0)
            reference.wait(lambda: False, reference_s)
        undisturbed = read_course(reference.run, 0)
        signs = {"steps"} if undisturbed.first_step is not None else set[str]()
        signs |= {"checkpoints"} if reference.saved() and not signs else set()
    verdict = reference.verdict
    if verdict is not None and verdict.state == "failed":
        raise HpcdistError(
            f"the job fails undisturbed, so there is nothing to disturb: {verdict.message}",
            hint=f"see hpcdist logs {name_to_type(reference.run.path)}",
        )
    with _work_folder(request, "disturbed") as folders:
        run = _submit(request, request.plan(_settings(request.job, undisturbed)))
        disturbed = _DisturbedRun(request, run, folders, signs=signs)
        with disturbed.ended():
            costs = [_try(request.job, disturbed, name, undisturbed) for name in request.names]
    runs = [reference.run, run]
    return costs, list(_remarks(request.job, undisturbed, costs, runs)), runs


def read_course(run: Run, attempt: int) -> Course:
    """Return what rank 0 recorded of an attempt so far."""
    events: list[dict[str, Any]] = []
    with suppress(OSError):
        files.refresh(run.events_folder)
        events = read_events(run.event_file(0, attempt))
    keys = ("step", "steps", "wall_s")
    windows = [
        event
        for event in events
        if event["event"] == "steps" and all(isinstance(event.get(k), int | float) for k in keys)
    ]
    resumed = next((event for event in events if event["event"] == "resume"), {})
    setup = next((event for event in events if event["event"] == "setup"), {})
    per_step = [event["wall_s"] / event["steps"] for event in windows if event["steps"]]
    return Course(
        resumed_step=resumed.get("step"),
        first_step=windows[0]["step"] - windows[0]["steps"] if windows else None,
        last_step=windows[-1]["step"] if windows else None,
        losses={
            event["step"]: event["loss"]
            for event in windows
            if isinstance(event.get("loss"), int | float)
        },
        step_time_s=median(per_step) if per_step else None,
        steps_per_epoch=setup.get("steps_per_epoch"),
    )


class _DisturbedRun:
    """One run of a drill: waiting for what it does, and disturbing it."""

    def __init__(
        self,
        request: Request,
        run: Run,
        folders: Sequence[Path],
        *,
        signs: AbstractSet[str] = frozenset({"steps", "checkpoints"}),
    ) -> None:
        """`folders` are those that the drill has made; by `signs` one can see that the job works:
        steps that it records, checkpoints that it saves, or neither."""
        self.run = run
        self.verdict: Verdict | None = None
        """Why the run ended; None while it goes on."""
        self._request = request
        self._own_folders = [run.path, *folders]
        self._signs = signs
        self._scheduler = load_scheduler(str(run.read_scheduler()))
        self._watch = EndWatch([run])
        self._waited: str | None = None
        self.patience_s = request.budget_s * _PATIENCE_SHARE
        self._former: dict[Path, int] = {}
        self._former = self.saved()

    @contextmanager
    def ended(self) -> Iterator[None]:
        """End the run after the block, whatever happens in it."""
        try:
            yield
        finally:
            if self.verdict is None:
                self._scheduler.cancel([self.run])
                wait_until_free(self.run)

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

        return bool(poll(look, interval_s=_POLL_S, limit_s=limit_s))

    def wait_for_work(self, attempt: int) -> bool:
        """Wait until an attempt has recorded a step, or has saved a checkpoint; return whether it
        did. A job that shows neither works if it does not end."""
        self.wait(lambda: self.run.newest_attempt() >= attempt, None)
        if not self._signs:
            self.wait(lambda: False, self.patience_s)
            return self.verdict is None and self.run.newest_attempt() == attempt
        before = self.saved()

        def works() -> bool:
            if "steps" in self._signs and read_course(self.run, attempt).first_step is not None:
                return True
            return "checkpoints" in self._signs and bool(self.saved().items() - before.items())

        is_certain = isinstance(self._request.job, TrainingJob) or self._signs == {"steps"}
        return self.wait(works, _CERTAIN_S if is_certain else max(self.patience_s, _LEAST_START_S))

    def saved(self) -> dict[Path, int]:
        """Return the files of checkpoints that the run has written, oldest first, each with the
        time at which it was written, in ns."""
        saved: dict[Path, int] = {}
        for folder in (*self._own_folders, *map(Path, self._request.folders)):
            saved |= list_saved(folder)
        written = {path: time for path, time in saved.items() if self._former.get(path) != time}
        return dict(sorted(written.items(), key=lambda each: each[1]))

    def own_checkpoint(self) -> Path | None:
        """Return the newest checkpoint in a folder that the drill has made; of one in parts, the
        largest."""
        for path in reversed(self.saved()):
            if any(path.is_relative_to(folder) for folder in self._own_folders):
                parts = [part for part in path.parent.iterdir() if part.suffix == ".distcp"]
                return max([path, *parts], key=lambda part: part.stat().st_size)
        return None

    def disturb(self, name: str, checkpoint: Path | None) -> bool:
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
            assert checkpoint is not None
            first = find_rank(self.run, 0, attempt)
            limit = max(1, checkpoint.stat().st_size // 2)
            self._start(first.host, "prlimit", f"--pid={first.pid}", f"--fsize={limit}:")
            if not self.wait(has_ended, max(self.patience_s, _LEAST_FULL_S)):
                self._start(first.host, "prlimit", f"--pid={first.pid}", "--fsize=unlimited:")
                return False
        else:
            if name == "damage":
                assert checkpoint is not None
                os.truncate(checkpoint, checkpoint.stat().st_size // 2)
            self._start(rank.host, "kill", "-9", str(rank.pid))
        self.wait(has_ended, None)
        return True

    def _start(self, host: str, *command: str) -> None:
        """Start a command within the job, on one of its nodes."""
        argv = self._scheduler.enter(self.run, host, command, is_terminal=False)
        run_command(argv, timeout_s=_COMMAND_S)

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
        disturbed.wait(
            lambda: disturbed.saved() != before, _CERTAIN_S if is_trainer else disturbed.patience_s
        )
        disturbed.wait(lambda: False, _SETTLE_S)
    if disturbed.verdict is not None:
        why = disturbed.verdict.message or disturbed.verdict.state
        return Cost(name=name, went_on="not tried", advice=f"the run had ended before: {why}")
    checkpoint = disturbed.own_checkpoint()
    if checkpoint is None and name in {"full-disk", "damage"}:
        return Cost(
            name=name, went_on="not tried", advice="the job had saved no checkpoint by then"
        )
    attempt, num_saved = run.newest_attempt(), len(disturbed.saved())
    begin_s = time.monotonic()
    if not disturbed.disturb(name, checkpoint):
        return Cost(
            name=name,
            went_on="did not stop",
            lost_steps=0,
            down_s=0.0,
            loss=_difference(undisturbed, read_course(run, attempt)),
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
    has_stopped = verdict is not None and verdict.exit_code == EXIT_STOPPED
    limit_min = job.resources.time_limit_min
    up_to = "all work until then" if limit_min is None else f"up to {limit_min / 60:.3g} h"
    went_on, lost_steps, advice, is_lost = "-", None, None, True
    if down_s is not None and records:
        lost_steps = max(0, (before.last_step or 0) - (begun if is_start else step or 0))
        went_on = "the start" if is_start else f"step {step}"
    if failure is not None:
        went_on, advice = "failed again", f"started again, it failed: {failure}"
        if name in {"full-disk", "damage"} and num_saved > 1:
            is_lost = False
            advice += "; let it fall back to the previous checkpoint, which is whole"
        elif name in {"full-disk", "damage"}:
            advice += (
                f"; its one checkpoint is gone, with {up_to}: write to another name and "
                "os.replace() it, and keep the last two"
            )
    elif down_s is None:
        is_lost, advice = False, f"the drill ended before the job continued: {_TOO_SHORT}"
    elif name == "time-limit" and not has_stopped:
        lost = "the work since the last one" if num_saved else up_to
        advice = (
            f"no checkpoint is saved on the warning: you would lose {lost}, and the job is not "
            f"started again ({_HOW_TO_STOP})"
        )
    elif not num_saved and (is_start or not records):
        advice = f"no checkpoint is saved: you would lose {up_to}"
    elif records and is_start:
        advice = (
            f"it saves checkpoints, but started from the beginning: you would lose {up_to} "
            f"({_HOW_TO_LOAD})"
        )
    else:
        is_lost = False
    is_right: bool | None = None
    if verdict is not None and (name != "time-limit" or verdict.state != "cancelled"):
        nodes, first = {job.resources.nodes - 1, None}, verdict.first
        was_killed = (
            first is not None and first.signal == "SIGKILL" and first.rank == job.num_ranks - 1
        )
        is_right = {
            "time-limit": verdict.state == "preempted",
            "kill-agent": verdict.kind == "agent_lost" and verdict.node in nodes,
            "full-disk": verdict.kind in {"exception", "exit"} and verdict.state == "failed",
        }.get(name, was_killed)
    return Cost(
        name=name,
        verdict=None if verdict is None else verdict.kind,
        is_verdict_right=is_right,
        went_on=went_on,
        lost_steps=lost_steps,
        down_s=down_s,
        loss="-" if is_start else _difference(undisturbed, after),
        is_work_lost=is_lost,
        advice=advice,
    )


def _difference(undisturbed: Course, course: Course) -> str:
    """Return how far the losses of an attempt are from those of the undisturbed run."""
    both = [step for step in course.losses if step in undisturbed.losses]
    off = (
        abs(course.losses[step] - (expected := undisturbed.losses[step]))
        / max(abs(expected), _SAME)
        for step in both
    )
    worst = max(off, default=None)
    if worst is None:
        return "-"
    return "same" if worst <= _SAME else f"{worst:.2g} off"


def _remarks(
    job: JobSpec, undisturbed: Course, costs: Sequence[Cost], runs: Sequence[Run]
) -> Iterator[str]:
    """Yield what the user should know of the job beside the disturbances."""
    if isinstance(job, TrainingJob):
        per_epoch = undisturbed.steps_per_epoch or 0
        every = job.checkpoint.every_steps or job.checkpoint.every_epochs * per_epoch
        time_s = every * (undisturbed.step_time_s or 0.0)
        if every:
            yield (
                "the drill saves checkpoints more often than the job does; in the job, a failure "
                f"costs up to {number_of(every, 'step')}, {show_time(time_s)} "
                "(checkpoint.every_epochs, checkpoint.every_steps)"
            )
    if undisturbed.first_step is None:
        yield (
            "the job records no steps, so only its checkpoints show what it lost, and its losses "
            "cannot be compared; record.step(samples=..., loss=loss) records both"
        )
    elif any(cost.loss.endswith("off") for cost in costs):
        names = [name_to_type(run.path) for run in runs]
        yield (
            "the losses differ from those of the undisturbed run: perhaps the program is not "
            "seeded, or its checkpoints lack something (random state, order of the data, "
            f"optimizer); hpcdist diff {' '.join(names)} names the first step"
        )


def _settings(job: JobSpec, undisturbed: Course | None) -> list[str]:
    """Return the keys that a drill sets: those of the undisturbed run, or with what it showed."""
    keys = ["launch.requeue=false", f"launch.max_restarts={_MAX_RESTARTS}", "record.window_s=0.001"]
    keys.append(f"resources.time_limit_min={_LIMIT_MIN}")
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


def _submit(request: Request, planned: PlannedRun) -> Run:
    planned.prepare()
    submission = PlannedSubmission.of_run(planned)
    (run,) = submit(submission, runs=request.folder, command=request.command).runs
    return run


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
        is_large = os.path.getsize(source) > _MOST_COPIED_BYTES
        if is_large and not source.endswith(SUFFIXES):
            os.symlink(source, target)
        else:
            shutil.copy2(source, target)

    def leave_out(folder: str, names: list[str]) -> list[str]:
        return [
            name
            for name in names
            if name.startswith(".") or request.folder.is_relative_to(Path(folder, name))
        ]

    shutil.copytree(before, place, symlinks=True, copy_function=copy, ignore=leave_out)
    place.chmod(files.PRIVATE_FOLDER)
    try:
        os.chdir(place)
        yield [place]
    finally:
        os.chdir(before)
