"""`Batch`: a scheduler with a queue, from pairs of questions to its commands.

A scheduler says how its command submits, lists and ends jobs, and what options it takes; all that
follows from that is here, once: plans, finding jobs again, conditions, cancelling, accounting, and
steps in an allocation.

Jobs are known by id and name: an id alone may be another job's by now. Of a run whose submission
was cut short only the name is known, which was planned before.
"""

# ruff: noqa: ARG002 - some methods are defaults, or take arguments for other schedulers
from __future__ import annotations

import math
import os
import re
import shutil
import signal
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import (
    EXIT_INTERRUPTED,
    JobError,
    ProfileError,
    RunDirectoryError,
    SchedulerError,
)
from hpcdist.base.progress import poll
from hpcdist.base.text import number_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import run_command
from hpcdist.machine.containers import HOST_RUNTIMES
from hpcdist.machine.process import is_alive, works_in
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Accounting, Submission, SweepPlace
from hpcdist.runs.verdict import cancelled_verdict
from hpcdist.schedulers.base import (
    Allocation,
    Condition,
    Finding,
    JobPlace,
    Plan,
    Scheduler,
    Target,
    failed,
    former_lives,
    passed,
)
from hpcdist.schedulers.request import lay_out, refuse_keys, render, time_limit_min
from hpcdist.schedulers.tasks import agents_of, owner_of, place_of

_TIMEOUT_S = 30.0
_STARTING_S = 120.0
_FORGOTTEN_S = 20.0
"""Time for which a scheduler must go on not to know a job: one that is restarted may have no jobs
for a while, and a command may fail without saying so."""
_SEQUEL_S = 120.0
"""Time for which a scheduler may list a job as ended that it is about to start again: LSF and Slurm
took 4 to 60 s."""
_POLL_S = 0.5
_GONE_LIMIT_S = 180.0
"""Time that jobs have to end. Slurm's KillWait and UnkillableStepTimeout are 30 s and 60 s where
a site sets nothing; LSF sends SIGINT, SIGTERM and SIGKILL 10 s after each other."""
_STEP_END_S = 10.0
_PATTERNS = ':,^%\\\n"'
"""Signs in a path that one scheduler or the other takes for something else."""


class Job(Condition, frozen=True, kw_only=True):
    """One job, or one element of an array, as its scheduler lists it, with its run's condition."""

    id: str
    """As the scheduler writes it; of an element with its place in the array: 123_4 or 123[4]."""
    name: str
    """The name that it was submitted with, without an element's place; empty: it is not told."""
    task: str = ""
    """Number of its run in the array, from 0 on; empty: there is no array."""
    word: str = ""
    """The scheduler's own word for the state."""
    exit_code: int | None = None
    nodes: Sequence[str] = ()
    """Each once, in the scheduler's order."""
    queue_wait_s: float | None = None
    elapsed_s: float | None = None
    max_rss_bytes: int | None = None

    @property
    def is_active(self) -> bool:
        """Return whether it waits or runs."""
        return self.state in ("pending", "running")

    def accounting(self) -> Accounting:
        """Return what the scheduler's books have on it."""
        names = set(Accounting.__struct_fields__) - {"job_id", "state", "nodes"}
        values = {name: getattr(self, name) for name in names}
        return Accounting(job_id=self.id, state=self.word, nodes=list(self.nodes), **values)


class Batch(Scheduler):
    """A scheduler with a queue: what it says of its commands, pairs of one and what its output
    means; and then what follows from that."""

    has_queue = True
    mails = True
    container_runtimes: ClassVar[Sequence[str]] = HOST_RUNTIMES
    can_requeue = True
    template: ClassVar[str]
    """File of templates/."""
    warnings: ClassVar[Sequence[str]]
    """Signals that agents get before their job is ended."""
    warns_in_time: ClassVar[bool] = False
    """The warning comes so long before the time limit as the job asks for; else an agent's clock
    warns."""
    first_place: ClassVar[int] = 0
    """Number of an array's first element."""
    element: ClassVar[str] = "{}[{}]"
    """The id of an element, from the array's and its place."""
    unclear: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    """What the command that submits says at an error after which there may be a job."""
    foreign_keys: ClassVar[Sequence[str]] = ()
    """Keys of a profile that mean nothing to it."""
    merges: ClassVar[tuple[str, ...]] = ()
    """Options of the profile's directives that `directives` puts together with its own."""

    @abstractmethod
    def submit_command(self, target: Target, script: str) -> list[str]:
        """Return the command that submits, which is given the script on its standard input."""

    @abstractmethod
    def parse_submitted(self, text: str) -> str | None:
        """Return the job's id, of an array its own without brackets, from a line or more of what
        that command has printed; None where it names none."""

    @abstractmethod
    def environment(self, before: Mapping[str, str], target: Target, script: str) -> dict[str, str]:
        """Return the environment for that command, or for the script in an allocation: the
        caller's, without what would change the job unseen."""

    @abstractmethod
    def list_jobs(self, ids: Collection[str]) -> list[Job]:
        """Return these jobs (an array's elements may all be among them) as far as the scheduler
        knows them; without ids all of this user's. Raises SchedulerError where it does not tell."""

    @abstractmethod
    def kill(self, ids: Collection[str]) -> None:
        """End jobs; those that have ended are none of its business. Raises SchedulerError."""

    def books(self, ids: Collection[str]) -> list[Job]:
        """Return jobs with all that the scheduler's accounting has on them."""
        return self.list_jobs(ids)

    def script_values(self, job: JobSpec, target: Target, plan: Plan) -> dict[str, Any]:
        """Return what the template takes besides what all templates take."""
        return {}

    def refused_hint(self, said: str, script: str) -> str:
        """Return the advice where the scheduler refuses a job."""
        return (
            "nothing was submitted; see the request with hpcdist render, the profile with hpcdist "
            "cluster show"
        )

    # Before and at the submission.

    def plan(self, job: JobSpec, cluster: ClusterProfile) -> Plan:
        limit_min = None if self.warns_in_time else time_limit_min(job, cluster)
        return self._plan(job, cluster, limit_min)

    def plan_step(self, job: JobSpec, cluster: ClusterProfile, allocation: Allocation) -> Plan:
        if (nodes := job.resources.nodes) > allocation.num_nodes:
            raise JobError(
                f"resources.nodes is {nodes}, but allocation {allocation.job_id} has "
                f"{allocation.num_nodes}",
                hint=f"ask for less: --nodes; or get more: {self.how_to_allocate}",
            )
        limits = [time_limit_min(job, cluster), allocation.left_min]
        limit_min = min((one for one in limits if one is not None), default=None)
        plan = self._plan(job, cluster, limit_min)
        return msgspec.structs.replace(plan, allocation=allocation.job_id)

    def _plan(self, job: JobSpec, cluster: ClusterProfile, limit_min: float | None) -> Plan:
        refuse_keys(cluster, self.foreign_keys, self.title)
        launch = lay_out(job, cluster, warning_signals=self.warnings, limit_min=limit_min)
        return Plan(launch=launch, cluster=cluster)

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        if sign := next((sign for sign in _PATTERNS if sign in str(target.folder)), None):
            raise RunDirectoryError(
                f"{target.folder}: the path holds {sign!r}, which schedulers take for a pattern",
                hint="name another folder with --runs or HPCDIST_RUNS",
            )
        own = self.directives(job, plan.cluster, target)
        theirs = [one for one in plan.cluster.directives if not one.startswith(self.merges)]
        for text in theirs:
            if twice := next((one for one in own if one.is_given_by(text)), None):
                raise ProfileError(
                    f'the cluster profile: directives has "{text}", which hpcdist sets itself',
                    hint=f"it is set for {' and '.join(twice.keys) or 'what hpcdist does'}",
                )
        directives = [*(one.line for one in own), *theirs]
        return render(
            self.template,
            job,
            target,
            plan,
            directives=[] if target.allocation else directives,
            **self.script_values(job, target, plan),
        )

    def submit(self, job: JobSpec, target: Target, runs: Sequence[Run], script: str) -> list[str]:
        from hpcdist.schedulers.submitting import Handover  # which takes 0.1 s

        sent = Handover(self, target, script)
        job_ids = sent.submit_all(agents_of(runs, self.name))
        submission = Submission(
            scheduler=self.name,
            step=target.allocation is not None,
            process=sent.process,
            job_name=target.name,
            folder=str(target.folder),
        )
        try:
            for run, job_id in zip(runs, job_ids, strict=True):
                run.write_submission(msgspec.structs.replace(submission, job_id=job_id))
                owner = owner_of(target.submitit_folder, place_of(job_id))
                if owner not in {None, job_id}:  # it began before its submission was noted
                    run.write_submission(msgspec.structs.replace(submission, job_id=owner))
        except BaseException:
            sent.take_back(job_ids)
            raise
        return sent.said

    # What became of it.

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        sent = {run.id: run.read_submission() for run in runs}
        found = {
            run.id: _step_condition(run, one)
            for run in runs
            if (one := sent[run.id]) and one.step and (one.process or run.verdict_file.exists())
        }
        queued = [run for run in runs if run.id not in found]
        ids = sorted({str(one.job_id) for run in queued if (one := sent[run.id])})
        known = JobIndex(self.list_jobs(ids) if ids else ())
        if any(sent[run.id] is None for run in queued):  # known by their names only
            known.add(self.list_jobs(()))
        for run in queued:
            job = known.find(run, sent[run.id])
            found[run.id] = condition_of(run, sent[run.id], job, self.title)
            if (one := sent[run.id]) and one.step:  # the job is a dev run's
                found[run.id] = _condition_in(run, found[run.id])
        return found

    def cancel(self, runs: Sequence[Run], **_: Any) -> None:
        """End the runs: jobs whose ids are known also where the scheduler does not list them."""
        sent = {run.id: run.read_submission() for run in runs}
        for run in runs:
            run.ask_to_cancel()
        steps = [(run, one) for run in runs if (one := sent[run.id]) and one.step]
        queued = [run for run in runs if not ((one := sent[run.id]) and one.step)]
        problem: SchedulerError | None = None
        try:
            known = JobIndex(self.list_jobs(()) if queued else ())
            ids = {job.id for run in queued for job in known.find_all(run, sent[run.id])}
        except SchedulerError as error:
            problem = error
            ids = {str(one.job_id) for run in queued if (one := sent[run.id])}
        told = f"{self.title} was told to end {', '.join(sorted(ids))}; " if ids else ""
        try:
            self.kill(sorted(ids))
        except SchedulerError as error:
            told, problem = "what runs is ended by its own agents; ", error
        for run, submission in steps:
            _end_step(run, submission)
        if problem is not None:
            raise SchedulerError(
                f"{told}whether anything is left is not known: {problem.message}",
                hint="see `hpcdist status` when it answers again",
            )

        def are_gone() -> bool | None:
            left = any(job.is_active and job.id in ids for job in self.list_jobs(ids))
            return None if left else True

        if ids and not poll(are_gone, interval_s=_POLL_S, limit_s=_GONE_LIMIT_S):
            said = f"jobs {', '.join(sorted(ids))} have not all ended within {_GONE_LIMIT_S:g} s"
            raise SchedulerError(said, hint="their nodes may be down: ask the site")
        for run in runs:
            run.write_verdict(cancelled_verdict())

    def accounting(self, runs: Sequence[Run]) -> dict[str, Accounting]:
        sent = {run: one for run in runs if (one := run.read_submission()) and not one.step}
        if not sent or shutil.which(self.version_command[0]) is None:
            return {}
        known = JobIndex(self.books(sorted({str(one.job_id) for one in sent.values()})))
        found = {run.id: known.find(run, one) for run, one in sent.items()}
        return {name: job.accounting() for name, job in found.items() if job is not None}

    # The site.

    def examine(self, job: JobSpec, cluster: ClusterProfile) -> Iterator[Finding]:
        """Check that the daemons answer: the list of jobs is asked for as status does."""
        try:
            done = run_command(self.version_command, timeout_s=_TIMEOUT_S)
            jobs = number_of(len(self.list_jobs(())), "job")
        except SchedulerError as error:
            yield failed("controller", error.message, error.hint or "tell the site if it lasts")
        else:
            version = (done.stdout.strip() or done.stderr.strip()).partition("\n")[0]
            yield passed("controller", f"{version} lists {jobs} of yours")

    # Within a job.

    def place(self) -> JobPlace:
        """Return the place by what the program has set that started the agents on the hosts."""
        from hpcdist.schedulers import hosts  # programs alone need the rest of it

        place, given = super().place(), hosts.read_hosts(os.environ.get(hosts.HOSTS_VARIABLE, ""))
        if not given:
            return place
        host = given[min(place.node_rank, len(given) - 1)]
        return JobPlace(
            node_rank=place.node_rank,
            num_nodes=len(given),
            host=host.name,
            cpus=host.slots,
            age_s=hosts.age_of_job(),
        )

    def life(self) -> int:
        from hpcdist.schedulers.hosts import LIFE_VARIABLE

        return former_lives() + int(os.environ.get(LIFE_VARIABLE) or 0)


# Finding a run's job.


class JobIndex:
    """Jobs by their ids and names."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._by_key: dict[tuple[str, str], Job] = {}
        self._by_name: defaultdict[tuple[str, str], list[Job]] = defaultdict(list)
        self.add(jobs)

    def add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._by_key[job.id, job.name] = job
            self._by_name[job.name, job.task].append(job)

    def find(self, run: Run, submission: Submission | None) -> Job | None:
        """Return the run's job; None where the scheduler does not know it."""
        if submission is None:
            return next(reversed(self._by_name[_planned_name(run)]), None)
        job_id = str(submission.job_id)
        return self._by_key.get((job_id, str(submission.job_name)), self._by_key.get((job_id, "")))

    def find_all(self, run: Run, submission: Submission | None) -> list[Job]:
        """Return every job of the run: the command that submitted it may have made several, of
        which it knows one."""
        job = self.find(run, submission)
        names = {_planned_name(run)} | ({(job.name, job.task)} if job else set())
        return [job for name in names for job in self._by_name[name]]


def _planned_name(run: Run) -> tuple[str, str]:
    """Return the name of the run's job, and its number in an array, as they were planned."""
    spec = run.spec
    if spec.job_name is not None:  # it was resumed
        return spec.job_name, ""
    place = spec.sweep or SweepPlace()
    return place.job_name or run.id, "" if place.task is None else str(place.task)


# The condition of a run.


def condition_of(
    run: Run, submission: Submission | None, job: Job | None, scheduler: str
) -> Condition:
    """Return how a run is by its job; a signal may have meant a kill or a requeue."""
    if job is not None:
        with suppress(OSError):
            run.missed_file.unlink()
        condition: Condition = job
        if condition.state == "done" and submission is not None:
            owner = owner_of(Path(str(submission.folder)) / "submitit", place_of(job.id))
            if owner not in {None, job.id}:
                reason = f"job {owner} has it, which was submitted beside it"
                return Condition(state="running", reason=reason)
    elif submission is None:  # submitted a moment ago, or its submission was killed
        if is_new(run, _STARTING_S):
            return Condition(state="pending", reason="it is being submitted")
        return Condition(state="lost", reason=f"{scheduler} has no job of its name")
    else:
        condition = _condition_if_forgotten(run, str(submission.job_id), scheduler)
    attempt = run.read_attempt_verdict(run.newest_attempt())
    ended = ("preempted", EXIT_INTERRUPTED)  # it was killed or requeued, and no requeue came
    how = (attempt.kind, attempt.exit_code_of_run) if attempt is not None else None
    if condition.state not in ("failed", "lost") or how != ended:
        return condition
    reason = f"{scheduler} killed its job, and does not start it again"
    return Condition(state="cancelled", reason=reason)


def _condition_if_forgotten(run: Run, job_id: str, scheduler: str) -> Condition:
    """Return the condition of a run whose job the scheduler does not know, though it answers: lost
    where it did not know the job some time ago either; unknown until then; and running as long as
    its agents show that they live."""
    missing = f"{scheduler} does not list its job {job_id}"
    if run.read_verdict() is None and run.is_alive():
        return Condition(state="running", reason=f"{missing}, but its agents live")
    age_s = math.inf
    with suppress(OSError):  # somebody else's run: who only looks does no harm
        if not run.missed_file.exists() or run.missed_file.read_text() != job_id:
            files.write_whole(run.missed_file, job_id)
        age_s = files.now_by(run.launch_folder) - run.missed_file.stat().st_mtime
    if age_s >= _FORGOTTEN_S:
        return Condition(state="lost", reason=f"{scheduler} has forgotten its job")
    reason = f"{missing}; the run is taken for lost if that is so in {_FORGOTTEN_S:g} s"
    return Condition(state="unknown", reason=reason)


def is_new(run: Run, limit_s: float) -> bool:
    """Return whether something was written into the run directory itself that short ago."""
    try:
        return files.now_by(run.path.parent) - run.path.stat().st_mtime < limit_s
    except OSError:  # deleted a moment ago
        return False


def is_between_lives(run: Run) -> bool:
    """Return whether the run's last attempt ended a moment ago with a verdict that expects another
    life of its job: until that begins, a scheduler may list the job as ended."""
    number = run.newest_attempt()
    verdict = run.read_attempt_verdict(number)
    if verdict is None or verdict.resumed or verdict.exit_code_of_run == EXIT_INTERRUPTED:
        return False
    return run.age_of_attempt_verdict(number) < _SEQUEL_S


def note_own_job(run: Run, job_id: str | None) -> None:
    """Note within a job that the run is this one, where its submission names another of those that
    the command which submitted it has made."""
    submission = run.read_submission()
    if submission is None or submission.step or submission.job_id is None:
        return
    if job_id not in {None, submission.job_id}:
        with suppress(OSError):  # a full disk must not end the run
            run.write_submission(msgspec.structs.replace(submission, job_id=job_id))


# Steps: runs in an allocation of the user's, which stays whatever becomes of them.


def _step_condition(run: Run, submission: Submission) -> Condition:
    """Return the condition of a run by the process that starts its agents; what is on another host
    lives as far as can be known: its end is a verdict."""
    if submission.process is None or is_alive(submission.process) is False:
        return Condition(state="lost")
    reason = f"its step starts, or waits for room in allocation {submission.job_id}"
    is_running = run.has_started()
    return Condition(state="running") if is_running else Condition(state="pending", reason=reason)


def _condition_in(run: Run, dev: Condition) -> Condition:
    """Return the condition of a run in the nodes of a dev run, whose server leaves a verdict."""
    if dev.state == "running" and not run.has_started():
        return Condition(state="pending", reason="it begins once the runs before it have ended")
    if dev.state in ("pending", "running", "unknown"):
        return dev
    return Condition(state="lost", reason="what held its nodes has ended")


def _end_step(run: Run, submission: Submission) -> None:
    """Wait until nothing is left of a run that is asked to end: its agents see that, wherever they
    are. What has no agents yet is killed where its script is; a dev run does not start it."""
    process = submission.process
    if process is None and not run.has_started():
        return
    if process and not run.has_started() and is_alive(process) and works_in(process.pid, run.path):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def is_over() -> bool | None:
        if process is None:
            run.look_anew()
            return run.verdict_file.exists() or None
        is_left = run.is_alive() if is_alive(process) is None else is_alive(process)
        return None if is_left else True

    patience_s = _STEP_END_S + run.spec.outline.launch.grace_s
    if not poll(is_over, interval_s=_POLL_S, limit_s=patience_s):
        raise SchedulerError(
            f"run {run.id} in allocation {submission.job_id} does not end",
            hint="its nodes may be down"
            + (f"; kill process {process.pid} on {process.host}" if process else ""),
        )
