"""The protocol of a scheduler, and the values that pass between schedulers and the other rooms.

A scheduler is an object of a subclass of `Scheduler`, in a module that the table names
(`hpcdist.cluster.schedulers`). The abstract methods are what every scheduler does; the others have
defaults, for a scheduler without a queue, books, steps or requeues.
"""

# ruff: noqa: ARG002 - most methods are defaults
from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from msgspec import Struct

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError, SubmissionUnclearError, UserError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Site
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import call_command
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Accounting, LaunchPlan
from hpcdist.runs.verdict import State, Verdict
from hpcdist.schedulers import tasks
from hpcdist.schedulers.requeue import Decision

if TYPE_CHECKING:
    from hpcdist.schedulers.hosts import Job

_DETECTION_TIMEOUT_S = 10.0
FORMER_LIVES_VARIABLE = "HPCDIST_JOB_FORMER_LIVES"
"""Number of the lives of a run in its former jobs, before it was resumed."""


class Plan(Struct, frozen=True, kw_only=True):
    """A plan of how a scheduler would run a job: made without any effect."""

    launch: LaunchPlan
    """The layout of the ranks; the agents read it in spec.json."""
    notes: list[str] = []
    """Sentences that the user should read."""
    cluster: ClusterProfile = ClusterProfile()
    allocation: str | None = None
    """Id of the allocation in which the job runs at once, as a step; None: it is submitted."""
    dev: str | None = None
    """Path of the dev run in whose nodes it starts; None: it is in none."""

    @property
    def asks_for_gpus(self) -> bool:
        return self.launch.device != "cpu" and self.cluster.gpu_request != "none"


class Allocation(Struct, frozen=True, kw_only=True):
    """Nodes that a scheduler has given to this shell already."""

    job_id: str
    num_nodes: int
    left_min: float | None = None
    """Minutes until it ends; None: there is no limit, or the scheduler keeps to it."""
    dev: str | None = None
    """Path of the dev run that holds it; None: a shell does."""


class Dependency(Struct, frozen=True, kw_only=True):
    """Jobs that must have ended before a job may start."""

    kind: Literal["afterok", "afterany"]
    """Ended well, or in whatever way."""
    job_ids: list[str]


class Target(Struct, frozen=True, kw_only=True):
    """The target of one script: one run, or all runs of an array."""

    name: str
    """The job's name at the scheduler: the id of the run, or of the sweep."""
    folder: Path
    """Takes script.sh, and submitit's files."""
    cwd: str
    """The working directory of the ranks."""
    environment: dict[str, str] = {}
    """Variables that say where things are."""
    own_folders: list[str] = []
    """Folders of the snapshot, which must be the user's own where the job starts."""
    array_size: int | None = None
    """Number of runs; None: one run, and no array."""
    max_parallel: int | None = None
    """Most runs of the array at one time; None: as many as there is room for."""
    dependencies: list[Dependency] = []
    """All of them must come true."""
    allocation: str | None = None
    continues: bool = False
    """A run goes on as this job, which is submitted from within its former one."""

    @property
    def script_file(self) -> Path:
        return self.folder / "script.sh"

    @property
    def submitit_folder(self) -> Path:
        """The folder of submitit's pickles, results and logs."""
        return self.folder / "submitit"

    def make_folders(self) -> None:
        """Make the two folders where they are not there, private to the user."""
        for folder in (self.folder, self.submitit_folder):
            folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)


class Directive(Struct, frozen=True):
    """One option of a script, as the scheduler reads it, and why it stands there."""

    option: str
    """With what stands between it and its value: `--nodes=`, or `-n ` and a space."""
    value: str = ""
    """Quoted as the scheduler wants it."""
    why: str = ""
    """Empty: what the first of the keys means."""
    keys: Sequence[str] = ()
    """Keys of the job (resources.nodes) or of the profile (partition) that it comes from; of
    `resources.mem_gb|mem_gb` the first counts that is set."""

    @property
    def line(self) -> str:
        """The text behind #SBATCH, #BSUB or #PBS."""
        return f"{self.option}{self.value}"

    def is_given_by(self, text: str) -> bool:
        """Return whether a directive of a profile is the same option."""
        named = self.line if self.option.endswith(" ") and "=" in self.value else self.option
        name = named.partition("=")[0].replace(" ", "")
        rest = text.replace(" ", "").removeprefix(name)
        return rest != text.replace(" ", "") and (len(name) == 2 or not re.match(r"[\w-]", rest))


def directives_of(*rows: tuple[str | None, ...]) -> list[Directive]:
    """Return the directives of rows of option, value (None: it is left out), why and keys; values
    are quoted as a shell wants it."""
    return [
        Directive(str(option), shlex.quote(value) if value else "", str(why), list(map(str, keys)))
        for option, value, why, *keys in rows
        if value is not None
    ]


class Condition(Struct, frozen=True, kw_only=True):
    """The state of a run that has no verdict, as its scheduler tells it."""

    state: State
    reason: str | None = None
    """Why it waits, or how it ended, in plain words."""
    is_suspended: bool = False
    """It has its nodes, and its processes are stopped."""


class Start(Struct, frozen=True, kw_only=True):
    """The start of a job that would be submitted now, as its scheduler foresees it."""

    time_s: float | None = None
    """Unix time, at the latest as things stand: running jobs may end before their limits. None: the
    scheduler does not say."""
    says: str = ""
    """The scheduler's answer in its place: what is free, or why it would not start at all."""


class Rendezvous(Struct, frozen=True, kw_only=True):
    """The place where the agents of a job meet, as all of them know it beforehand: on schedulers
    whose nodes have no file system in common."""

    address: str
    """Node 0's."""
    port: int
    secret: str
    """In hexadecimal digits; the agents of this run alone know it."""


class JobPlace(Struct, frozen=True, kw_only=True):
    """An agent's place among the nodes of its job."""

    node_rank: int
    num_nodes: int | None = None
    """Nodes of the job; None where the scheduler does not say."""
    host: str
    """The scheduler's name of the node; its host name where the scheduler gives none."""
    cpus: int | None = None
    """CPUs that the job has on the node; None where the scheduler does not say."""
    age_s: float = 0.0
    """Time for which the job has run, which counts for its time limit, as far as it is known."""
    rendezvous: Rendezvous | None = None
    """None: the agents meet where node 0 says in the run directory."""


class Finding(Struct, frozen=True, kw_only=True):
    """One line of the doctor's."""

    name: str
    state: Literal["pass", "warn", "FAIL", "skip"]
    """warn: it works, and may not for long; skip: it does not apply, or could not be looked at."""
    detail: str
    """The observation, in a sentence or less."""
    advice: str = ""
    """Advice, where it does not pass."""


def unclear_submission(name: str, why: str) -> SubmissionUnclearError:
    """Return the error of a submission of which nobody says whether it was taken."""
    return SubmissionUnclearError(
        f"it is not known whether {name} was submitted: {why}",
        hint=f"hpcdist status {name} will tell, hpcdist cancel {name} ends it",
    )


def passed(name: str, detail: str) -> Finding:
    return Finding(name=name, state="pass", detail=detail)


def warned(name: str, detail: str, advice: str) -> Finding:
    return Finding(name=name, state="warn", detail=detail, advice=advice)


def failed(name: str, detail: str, advice: str) -> Finding:
    return Finding(name=name, state="FAIL", detail=detail, advice=advice)


def skipped(name: str, detail: str) -> Finding:
    return Finding(name=name, state="skip", detail=detail)


def unusable(scheduler: Scheduler, job_id: str, why: str) -> UserError:
    """Return the error for an allocation of a shell in which nothing can be started."""
    return UserError(
        f"job {job_id}, which {scheduler.allocation_variable} names, cannot be used: {why}",
        hint=f"leave its shell with exit, and get another: {scheduler.how_to_allocate}",
    )


def former_lives() -> int:
    """Return how often the run was started by jobs before this one: 0 unless it was resumed."""
    return int(os.environ.get(FORMER_LIVES_VARIABLE) or 0)


class Scheduler(ABC):
    """One place where runs can go, and all that other rooms ask of it."""

    name: ClassVar[str]
    """As in the table."""
    title: ClassVar[str]
    """The name in messages: Slurm."""
    version_command: ClassVar[Sequence[str]] = ()
    """Command that succeeds where the scheduler is there; without one it is never detected."""
    runs_here: ClassVar[bool] = False
    """Runs are processes of this machine: they end with the command that follows them."""
    has_queue: ClassVar[bool] = False
    """Jobs wait until others have ended, and go on when the caller has left."""
    shares_files: ClassVar[bool] = True
    """Jobs find the user's files where they are here; else they get a snapshot, and no more."""
    mails: ClassVar[bool] = False
    """It mails at the end of a job, where `notify` of the profile says so."""
    max_array_size: ClassVar[int] = 1
    """Most runs in one array, as sites have it that set nothing; 1: there are no arrays."""
    jobs_can_wait: ClassVar[bool] = True
    """A job can be held back until others have ended; read where there is a queue."""
    allocation_variable: ClassVar[str | None] = None
    """Variable with the id of the allocation that a shell is in, in which a job can run at once, as
    a step; None: there are no steps."""
    how_to_allocate: ClassVar[str] = ""
    """Command by which users get an allocation."""
    launcher_advice: ClassVar[str] = "the setup lines of the cluster profile can put it on PATH"
    """Advice where the command that starts others on the hosts of a job cannot be run."""
    container_runtimes: ClassVar[Sequence[str]] = ()
    """Programs that can start its ranks in a container image; none: it takes no images."""
    leaves_out_nodes: ClassVar[bool] = False
    """Jobs can be kept off nodes by their names: key `exclude` of the profile."""
    can_requeue: ClassVar[bool] = False
    """The scheduler can start a job again that was stopped before its end."""
    outlives_first_node: ClassVar[bool] = False
    """With launch.min_nodes, a job goes on that has lost its first node, where its script is."""
    can_enter: ClassVar[bool] = False
    """It has a command that starts something within a running job: `enter` returns that."""
    step_variables: ClassVar[tuple[str, ...]] = ("SUBMITIT_",)
    """Beginnings of variables that say which of the tasks of a job's step a process is."""
    patience_s: ClassVar[float] = 100.0
    """Time for which a job asks to be started again, where the scheduler is silent: after a
    warning, which comes 120 s before the end where the job does not say otherwise."""
    kill_wait_s: ClassVar[float] = 30.0
    """Time from its SIGTERM to its SIGKILL, where a site does not say otherwise."""
    longest_poll_s: ClassVar[float] = 15.0
    """Longest pause between two questions while a run is followed; sites frown upon more."""

    # From a job to its submission.

    @abstractmethod
    def plan(self, job: JobSpec, cluster: ClusterProfile) -> Plan:
        """Check a job, and lay its ranks out.

        Raises JobError, ProfileError or SchedulerError where the job cannot run there.
        """

    def directives(self, job: JobSpec, cluster: ClusterProfile, target: Target) -> list[Directive]:
        """Return the options that the script asks for, in their order; pure."""
        return []

    @abstractmethod
    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        """Return the script that is executed; pure, and nothing of `target` need exist."""

    @abstractmethod
    def submit(self, job: JobSpec, target: Target, runs: Sequence[Run], script: str) -> list[str]:
        """Submit, and write each run's submission.json; return what the scheduler had to say, one
        sentence each.

        `runs` is one run, or those of the array in their order. On an error nothing runs, unless it
        is a SubmissionUnclearError: then the runs may be the scheduler's, and are found by their
        names.
        """

    def foresee(self, job: JobSpec, plan: Plan, target: Target, timeout_s: float) -> Start:
        """Return when a job would start. Raises SchedulerError where there is no answer in time."""
        return Start(time_s=time.time() if self.runs_here else None)

    def outlook(self, cluster: ClusterProfile) -> tuple[list[float], list[str]]:
        """Return when maintenances of the nodes begin, in Unix time, and what else decides about a
        start, one sentence each; of what does not answer, nothing."""
        return [], []

    # What became of it.

    @abstractmethod
    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        """Return the condition by run id, of runs that have no verdict yet; one question for all.

        A run without submission.json is being submitted, or its submission was killed.
        """

    @abstractmethod
    def cancel(
        self,
        runs: Sequence[Run],
        *,
        number: signal.Signals = signal.SIGTERM,
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        """End the runs; return when no process of theirs is left.

        A scheduler that can do so gives the signal `number` to their agents, and kills what is left
        once `is_urgent` turns true.
        """

    def accounting(self, runs: Sequence[Run]) -> dict[str, Accounting]:
        """Return what its books have by run id, of those runs that it knows; one question for all.

        Raises SchedulerError where it does not answer.
        """
        return {}

    def enter(self, run: Run, host: str, command: Sequence[str], *, is_terminal: bool) -> list[str]:
        """Return what starts a command within the run's job, on this host of it; `is_terminal`: for
        somebody at a terminal. Raises SchedulerError where that cannot be done."""
        raise SchedulerError(
            f"{self.title} has no command that enters a running job",
            hint=f"where the site allows it, ssh {host} -t {shlex.quote(shlex.join(command))}",
        )

    def fetch(self, run: Run, *, with_checkpoints: bool = False) -> None:
        """Bring home what the run's nodes have published, for a scheduler whose nodes have no file
        system in common with this machine.

        Raises SchedulerError and OSError.
        """
        return

    # Schedulers with steps.

    def allocation(self, job_id: str, environment: Mapping[str, str]) -> Allocation:
        """Return the allocation of this id, which a shell with this environment is in.

        Raises UserError where it has ended, SchedulerError where the scheduler does not answer.
        """
        raise NotImplementedError

    def plan_step(self, job: JobSpec, cluster: ClusterProfile, allocation: Allocation) -> Plan:
        """Check a job, and lay its ranks out over nodes of an allocation that this scheduler found.

        Raises JobError for what the allocation does not have.
        """
        raise NotImplementedError

    # Within a job: asked by the run's agents.

    def place(self) -> JobPlace:
        """Return which node of its job the calling agent is; by default as what starts the agents
        tells it."""
        node_rank = int(os.environ.get(tasks.NODE_VARIABLE) or 0)
        return JobPlace(node_rank=node_rank, host=socket.gethostname())

    def own_job_id(self) -> str | None:
        """Return the id of the job that the calling agent is part of; None where it has none."""
        return None

    def job_on_hosts(self) -> Job:
        """Return the hosts of this job, for a scheduler that starts scripts on the first only."""
        raise NotImplementedError

    def life(self) -> int:
        """Return how often the run had been started before, also by its former jobs: 0 in its first
        life."""
        return former_lives()

    def decide(self, verdict: Verdict) -> Decision:
        """Return what is to follow a stop after a warning, whose signal is `verdict.signal`, or the
        loss of an agent (kind agent_lost).

        Raises SchedulerError or OSError where that is not known.
        """
        raise NotImplementedError

    def requeue(self, run: Run) -> str | None:
        """Have the scheduler start this job, which is the run's, again; it may end the caller at
        once. Returns what is different in the next start, in a sentence for people.

        Raises RequeueRefusedError where it refuses for good, SchedulerError or OSError where it is
        worth while to ask again.
        """
        raise NotImplementedError

    def end_job(self) -> None:
        """End the job of a run that has ended without its first node, where the job's script is:
        where the scheduler keeps such a job (launch.min_nodes), nothing else ends it.

        Raises SchedulerError.
        """
        return

    # The site: asked before there is a job.

    def answers(self) -> bool:
        """Return whether the scheduler is here, for who leaves the choice to hpcdist."""
        if not self.version_command:
            return False
        try:
            done = call_command(self.version_command, timeout_s=_DETECTION_TIMEOUT_S)
        except SchedulerError:
            return False
        return done.returncode == 0

    def list_hosts(self, cluster: ClusterProfile) -> list[str]:
        """Return the nodes that jobs of a profile may run on, as agents call them; none where that
        is not known.

        Raises SchedulerError where the scheduler does not tell.
        """
        return []

    def detect_site(self) -> Site:
        """Return what the site offers, for a first hpcdist.yaml.

        Raises SchedulerError where the scheduler does not tell.
        """
        raise SchedulerError(
            f"{self.title} does not report what the site offers",
            hint="write hpcdist.yaml by hand; see docs/cluster-profiles.md",
        )

    def examine(self, job: JobSpec, cluster: ClusterProfile) -> Iterator[Finding]:
        """Find out whether the scheduler is there and answers, for a job by a profile."""
        yield from ()
