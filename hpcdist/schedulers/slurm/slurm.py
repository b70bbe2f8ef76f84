"""The Slurm scheduler: what each question to it becomes in Slurm's commands, and what their answers
mean.

Options of sbatch are described at slurm.schedmd.com/sbatch.html; those of 20.11 and newer are used.
The codes of reasons: slurm.schedmd.com/job_reason_codes.html.
"""

# ruff: noqa: ARG002 - the protocol has the arguments
from __future__ import annotations

import getpass
import math
import os
import re
import shutil
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from hpcdist.base.errors import SchedulerError, UserError
from hpcdist.base.progress import poll
from hpcdist.base.text import number_of
from hpcdist.cluster.channels import mail_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.job.check import parse_minutes
from hpcdist.job.spec import JobSpec, warning_before_s
from hpcdist.machine.command import CommandFailedError, call_command, failure_of, run_command
from hpcdist.machine.containers import RUNTIMES
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import State, Verdict
from hpcdist.schedulers.base import (
    Allocation,
    Directive,
    JobPlace,
    Plan,
    Start,
    Target,
    directives_of,
    former_lives,
    unusable,
)
from hpcdist.schedulers.batch import Batch, Job
from hpcdist.schedulers.request import (
    asks_for_gpus,
    cpus_per_node,
    mem_gb_per_node,
    parse_size,
    parse_time,
    time_limit_min,
    try_to_ask,
)
from hpcdist.schedulers.requeue import Cause, Decision
from hpcdist.schedulers.slurm.nodes import expand_nodes

_TIMEOUT_S = 30.0
_BOOKS_TIMEOUT_S = 20.0
_OWN_JOB_TIMEOUT_S = 10.0
"""Limit of one call from within a job; what fails is tried again."""
_ENTER_S = 60
MIB_PER_GB = 1e9 / 2**20
_SINFO = ("sinfo", "--noheader", "--exact", "--format=%P|%D|%c|%m|%G|%l|%a")
"""Partition, nodes, CPUs, memory in MiB, gres, time limit, availability; one line for all nodes
of a partition that are alike."""
_CONFIG = ("scontrol", "show", "config")
_WOULD_START = re.compile(r"to start at (\S+)")
_WOULD_NOT = re.compile(r"allocation failure: (?!unable to contact)(.+)", re.IGNORECASE)
_LIMITS = ("MaxJobs", "MaxSubmit", "MaxWall", "MaxTRES", "GrpTRES")
_ASSOC = ("sacctmgr", "-nP", "show", "assoc", f"format=Account,{','.join(_LIMITS)}")
_GRES = re.compile(r"(?:^|,)gpu(?::([^:(,]+))?:(\d+)(?=\(|,|$)")


# Its answers.

_STATES: dict[str, State] = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED"), "pending"),
    **dict.fromkeys(("REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"), "pending"),
    "COMPLETED": "done",
    **dict.fromkeys(("CANCELLED", "REVOKED"), "cancelled"),
    "PREEMPTED": "preempted",
    **dict.fromkeys(("BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL"), "failed"),
    **dict.fromkeys(("OUT_OF_MEMORY", "TIMEOUT"), "failed"),
}
"""Job states of slurm.schedmd.com/squeue.html and sacct.html -> ours; all others run."""
_STOPPED = {
    "SUSPENDED": "Slurm has suspended it; it continues when it is resumed: scontrol resume JOBID",
    "STOPPED": "it was stopped by SIGSTOP; continue it with: scancel --signal=CONT JOBID",
}
"""States of jobs that have their nodes and do nothing -> in plain words."""
_REASONS = {
    "BeginTime": "its start time has not come; a requeued job is held for about two minutes",
    "Dependency": "it waits for the end of another job",
    "DependencyNeverSatisfied": "the job that it waits for failed: it will never start",
    "JobArrayTaskLimit": "as many runs of the sweep as --max-parallel allows are active",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held; release it with: scontrol release JOBID",
    "None": "the scheduler has not looked at it yet",
    "PartitionConfig": "it asks for more than the nodes of the partition have",
    "PartitionNodeLimit": "it asks for more nodes than the partition has",
    "PartitionTimeLimit": "its time limit is longer than the partition allows",
    "Priority": "other jobs come before it",
    "ReqNodeNotAvail": "nodes that it needs are reserved or down, perhaps for maintenance",
    "Resources": "it waits for nodes to become free",
    "launch failed requeued held": "its start failed on a node, and it is held; release it with: "
    "scontrol release JOBID",
}
_NEVER = "DependencyNeverSatisfied"
_NO_LAUNCH = ": its first node could not start its script, as where it cannot write the runs folder"
_SQUEUE = ("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T|%r|%j")
"""The name comes last: it may hold what separates."""
_FIELDS = (
    *("JobID", "State", "Reason", "ExitCode", "Submit", "Eligible", "Start", "End", "ElapsedRaw"),
    *("NodeList", "MaxRSS", "JobName"),
)
_NO_BOOKS = re.compile(r"accounting storage is disabled", re.IGNORECASE)

# Its requests.

_KEPT = frozenset(("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_JWT"))
_EXCLUDE = "--exclude="
_CPUS = "resources.cpus_per_gpu|cpus_per_gpu"
_GPUS = ("resources.gpus", "gpu_request", "gpu_type")
_LIMIT = "resources.time_limit_min|time_limit_min"


class Slurm(Batch):
    """Runs as Slurm's jobs, or as steps of an allocation."""

    name = "slurm"
    title = "Slurm"
    container_runtimes = RUNTIMES
    can_enter = True
    outlives_first_node = True
    step_variables = (
        *("SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK", "PMI"),
        *("SLURM_SRUN", "SLURM_GTIDS", "SLURM_LAUNCH_NODE", "SRUN_", "SUBMITIT_"),
    )
    version_command = ("sbatch", "--version")
    allocation_variable = "SLURM_JOB_ID"
    how_to_allocate = "salloc --nodes=2"
    template = "slurm.sh"
    warnings = ("SIGUSR2", "SIGTERM")
    warns_in_time = True
    max_array_size = 1001  # slurm.schedmd.com/slurm.conf.html, MaxArraySize
    element = "{}_{}"
    leaves_out_nodes = True
    merges = (_EXCLUDE,)
    unclear = re.compile(r"timed out|zero bytes|receive failure|reset by peer", re.IGNORECASE)

    def directives(self, job: JobSpec, cluster: ClusterProfile, target: Target) -> list[Directive]:
        """Return the options of sbatch, in a fixed order."""
        resources, limit_min = job.resources, time_limit_min(job, cluster)
        cpus, mem_gb = cpus_per_node(job, cluster), mem_gb_per_node(job, cluster)
        num_cpus = (
            f"CPUs of the agent, which are those of its ranks: {resources.gpus} GPUs per node x "
            f"{cpus // resources.gpus} CPUs per GPU, {resources.nodes * cpus} in all."
        )
        kind = f"{cluster.gpu_type}:" if cluster.gpu_type else ""
        gpus = f"{kind}{resources.gpus}" if asks_for_gpus(job, cluster) else None
        by_gres = cluster.gpu_request == "gres"
        # Slurm looks at limits every 30 s or so, and may warn up to 60 s earlier than asked.
        warning = (
            "Slurm sends SIGUSR2 so many seconds before the time limit, and the ranks save a "
            "checkpoint; at most a quarter of the limit."
        )
        kept = None if job.launch.min_nodes is None else ""
        time_limit = None if limit_min is None else slurm_time(limit_min)
        mail = mail_of(cluster.notify)  # of an array one, at its end
        places = None if target.array_size is None else f"0-{target.array_size - 1}"
        if places and target.max_parallel:
            places += f"%{target.max_parallel}"
        waits = ",".join(":".join([one.kind, *one.job_ids]) for one in target.dependencies) or None
        given = [one for one in cluster.directives if one.startswith(_EXCLUDE)]
        out = ",".join([*(one.removeprefix(_EXCLUDE) for one in given), *cluster.exclude])
        return directives_of(
            ("--job-name=", target.name, "The run's id, by which squeue lists it."),
            ("--partition=", cluster.partition, "", "partition"),
            ("--account=", cluster.account, "", "account"),
            ("--qos=", cluster.qos, "", "qos"),
            ("--constraint=", cluster.constraint, "", "constraint"),
            (_EXCLUDE, out or None, "", "exclude"),
            ("--nodes=", str(resources.nodes), "", "resources.nodes"),
            ("--ntasks-per-node=", "1", "One agent per node, which forks its ranks."),
            ("--cpus-per-task=", str(cpus), num_cpus, "resources.gpus", _CPUS),
            ("--gres=gpu:" if by_gres else "--gpus-per-node=", gpus, "GPUs per node.", *_GPUS),
            (
                "--mem=",
                None if mem_gb is None else f"{math.ceil(mem_gb * MIB_PER_GB)}M",
                f"{mem_gb or 0:g} GB per node; sbatch's M is 2**20 bytes.",
                "resources.mem_gb|mem_gb",
            ),
            ("--time=", time_limit, "Time limit, as D-HH:MM:SS.", _LIMIT),
            (
                "--signal=",
                f"USR2@{math.ceil(warning_before_s(job.launch, limit_min))}",
                warning,
                "launch.warning_s",
                _LIMIT,
            ),
            ("--requeue" if job.launch.requeue else "--no-requeue", "", "", "launch.requeue"),
            ("--no-kill", kept, "A lost node does not end the job.", "launch.min_nodes"),
            ("--mail-type=", None if mail is None else "END,FAIL", "", "notify"),
            ("--mail-user=", mail or None, "", "notify"),
            ("--output=", log_pattern(target, "0"), "The job's own output."),
            ("--open-mode=", "append", "A requeued job adds to its output."),
            ("--array=", places, "Runs of the sweep that differ in nothing here."),
            ("--dependency=", waits, "Jobs that must have ended: --after, or --max-parallel."),
            ("--kill-on-invalid-dep=", waits and "yes", "A job that would wait in vain ends."),
        )

    def script_values(self, job: JobSpec, target: Target, plan: Plan) -> dict[str, Any]:
        return {
            "name": target.name,
            "cpus_per_node": cpus_per_node(job, plan.cluster),
            "output": log_pattern(target, "%t"),
            "losses": "--wait=60" if job.launch.min_nodes is None else "--wait=0 --no-kill",
        }

    def submit_command(self, target: Target, script: str) -> list[str]:
        return ["sbatch"]

    def parse_submitted(self, text: str) -> str | None:
        found = re.search(r"\bbatch job (\d+)", text)
        return found[1] if found else None

    def environment(self, before: Mapping[str, str], target: Target, script: str) -> dict[str, str]:
        """Return the caller's environment, without what would change the job unseen: variables win
        over directives in sbatch, and those of a job that this shell is part of would be taken for
        the new job's; of an allocation srun finds all by its id."""
        found = {
            name: value
            for name, value in before.items()
            if name in _KEPT or not name.startswith(("SLURM_", "SBATCH_"))
        }
        return found | ({"SLURM_JOB_ID": target.allocation} if target.allocation else {})

    def foresee(self, job: JobSpec, plan: Plan, target: Target, timeout_s: float) -> Start:
        """Ask `sbatch --test-only`, which counts on running jobs using their whole limits."""
        script = self.render(job, target, plan)
        environment = self.environment(os.environ, target, script)
        environment["SLURM_TIME_FORMAT"] = "standard"
        argv = ["sbatch", "--test-only"]
        done = call_command(argv, timeout_s=timeout_s, environment=environment, text=script)
        said = done.stdout + done.stderr
        if found := _WOULD_START.search(said):
            return Start(time_s=unix_time(found[1]))
        if (refused := _WOULD_NOT.search(said)) is None:
            raise failure_of(done)
        return Start(says=f"it would not start: Slurm says: {refused[1].strip()}")

    def outlook(self, cluster: ClusterProfile) -> tuple[list[float], list[str]]:
        standard = ("env", "SLURM_TIME_FORMAT=standard", "scontrol", "--oneliner")
        rows = map(job_fields, try_to_ask(*standard, "show", "reservation").splitlines())
        begins = [unix_time(row["StartTime"]) for row in rows if "MAINT" in row.get("Flags", "")]
        where = [f"--partition={cluster.partition}"] if cluster.partition else []
        waiting = try_to_ask("squeue", "--noheader", "--states=PENDING", "--format=%i", *where)
        number = sum(word[:1].isdigit() for word in waiting.split())
        notes = [f"{number_of(number, 'waiting job')} in front of it at most"] if number else []
        limits = try_to_ask(*_ASSOC, f"user={getpass.getuser()}").splitlines()
        for account, *cells in (line.split("|") for line in limits):
            given = zip(_LIMITS, cells, strict=False)
            parts = [f"{name}={cell}" for name, cell in given if cell]
            if parts and cluster.account in {None, account}:
                notes.append(f"account {account}: {', '.join(parts)}")
        return [*filter(None, begins)], notes

    def list_jobs(self, ids: Collection[str]) -> list[Job]:
        """Ask squeue once, and sacct once where squeue does not know all of them any more."""
        jobs = parse_queue(run_command(_SQUEUE, timeout_s=_TIMEOUT_S).stdout)
        missing = set(ids).difference(job.id for job in jobs)
        if not missing:
            return jobs
        try:
            return jobs + self.books(sorted(missing))
        except SchedulerError as error:  # the books may know the end, when they are open again
            reason = f"squeue has forgotten its job, and {error.message}"
            return jobs + [Job(id=one, name="", state="unknown", reason=reason) for one in missing]

    def books(self, ids: Collection[str]) -> list[Job]:
        """Ask sacct; return nothing where there is none, or it keeps no books."""
        if shutil.which("sacct") is None:
            return []
        wanted = ",".join(sorted({one.partition("_")[0] for one in ids}))
        argv = ["sacct", "--duplicates", "--noheader", "--parsable2", "--noconvert"]
        argv += [f"--format={','.join(_FIELDS)}", f"--jobs={wanted}"]
        environment = os.environ | {"SLURM_TIME_FORMAT": "standard"}
        try:
            done = run_command(argv, timeout_s=_BOOKS_TIMEOUT_S, environment=environment)
        except CommandFailedError as error:
            if _NO_BOOKS.search(error.said):
                return []
            raise
        return parse_books(done.stdout)

    def kill(self, ids: Collection[str]) -> None:
        if ids:
            run_command(["scancel", "--quiet", *ids], timeout_s=_TIMEOUT_S)

    def allocation(self, job_id: str, environment: Mapping[str, str]) -> Allocation:
        try:
            said = show_job(job_id)
        except CommandFailedError as error:
            raise unusable(self, job_id, error.said) from None
        fields = job_fields(said)
        if (state := fields.get("JobState", "unknown")) not in {"RUNNING", "SUSPENDED"}:
            raise unusable(self, job_id, f"its state is {state}")
        nodes = re.match(r"\d+", fields.get("NumNodes", ""))
        end_s = unix_time(fields.get("EndTime", ""))
        return Allocation(
            job_id=job_id,
            num_nodes=int(nodes[0]) if nodes else 1,
            left_min=None if end_s is None else max(0.0, (end_s - time.time()) / 60),
        )

    def enter(self, run: Run, host: str, command: Sequence[str], *, is_terminal: bool) -> list[str]:
        """Return a step that shares what the job has: slurm.schedmd.com/srun.html, --overlap (from
        Slurm 20.11 on). Without a number of its own it gets the GPUs of the job, as that says."""
        return [
            *("srun", f"--jobid={run.read_job_id()}", "--overlap", f"--nodelist={host}"),
            *("--nodes=1", "--ntasks=1", "--cpu-bind=none", f"--immediate={_ENTER_S}"),
            *(["--pty"] if is_terminal else []),
            *command,
        ]

    def place(self) -> JobPlace:
        """Return the place as srun tells it (slurm.schedmd.com/srun.html, OUTPUT ENVIRONMENT
        VARIABLES)."""
        return JobPlace(
            node_rank=_number(os.environ.get("SLURM_PROCID")) or 0,
            num_nodes=_number(os.environ.get("SLURM_STEP_NUM_NODES")),
            host=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            cpus=_number(os.environ.get("SLURM_CPUS_PER_TASK")),
        )

    def own_job_id(self) -> str:
        """Return the job's id; of an array's element with its place, for the last element's
        SLURM_JOB_ID is the array's own, and would mean all of them."""
        array, task = (os.environ.get(f"SLURM_ARRAY_{part}_ID") for part in ("JOB", "TASK"))
        return f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]

    def life(self) -> int:
        """Return the count of the run, by SLURM_RESTART_COUNT, which Slurm sets from the first
        requeue on."""
        return former_lives() + (_number(os.environ.get("SLURM_RESTART_COUNT")) or 0)

    def decide(self, verdict: Verdict) -> Decision:
        said = show_job(self.own_job_id(), timeout_s=_OWN_JOB_TIMEOUT_S)
        life = _number(os.environ.get("SLURM_RESTART_COUNT")) or 0
        decision = decide(verdict, said, life=life)
        if decision.cause != "requeue or preemption":
            return decision
        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
        argv = ["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N|%T|%E"]
        try:
            states = run_command(argv, timeout_s=_OWN_JOB_TIMEOUT_S).stdout
        except SchedulerError:
            return decision
        return with_lost_node(decision, states, expand_nodes(nodes))

    def requeue(self, run: Run) -> str | None:
        job_id, end = self.own_job_id(), run.read_attempt_verdict(run.newest_attempt())
        out = list(end.left_out) if end is not None else []
        before = job_fields(show_job(job_id)).get("ExcNodeList", "") if out else ""
        run_command(["scontrol", "requeue", job_id], timeout_s=_OWN_JOB_TIMEOUT_S)
        if not out:
            return None
        nodes = ",".join(filter(None, [*out, before.replace("(null)", "")]))
        update = ["scontrol", "update", f"JobId={job_id}", f"ExcNodeList={nodes}"]

        def is_excluded() -> bool | None:
            with suppress(SchedulerError):
                return bool(run_command(update, timeout_s=_OWN_JOB_TIMEOUT_S))
            return None

        # Slurm takes it of waiting jobs alone; and SIGTERM, with which it now ends the processes of
        # this one, may end the command, too.
        done = poll(is_excluded, interval_s=0.2, limit_s=_OWN_JOB_TIMEOUT_S)
        how = "without" if done else "though Slurm was not told to do without"
        return f"the job starts again {how} {' and '.join(out)}"

    def end_job(self) -> None:
        run_command(["scancel", "--quiet", self.own_job_id()], timeout_s=_OWN_JOB_TIMEOUT_S)

    def list_hosts(self, cluster: ClusterProfile) -> list[str]:
        argv = ["sinfo", "--noheader", "--Node", "--format=%N"]
        argv += [f"--partition={cluster.partition}"] if cluster.partition else []
        return run_command(argv, timeout_s=_OWN_JOB_TIMEOUT_S).stdout.split()

    def detect_site(self) -> Site:
        return detect_slurm(getpass.getuser())


scheduler = Slurm()


def log_pattern(target: Target, task: str) -> str:
    """Return where the output of a task goes; %t is its number in srun."""
    job = "%j" if target.array_size is None else "%A_%a"
    return f"{target.submitit_folder}/{job}_{task}_log.out"


# Reading.


def parse_queue(text: str) -> list[Job]:
    """Return the lines of `squeue --format=%i|%T|%r|%j`."""
    rows = (line.split("|", 3) for line in text.splitlines())
    return [_make_job(row[0], row[3], row[1], row[2]) for row in rows if len(row) == 4]


def _make_job(job_id: str, name: str, word: str, code: str, **values: Any) -> Job:
    """Return a job from Slurm's word for its state and its code for the reason."""
    state, stopped = _STATES.get(word, "running"), _STOPPED.get(word)
    reason: str | None
    if state == "pending":
        reason = plain_reason(code)
    elif state == "running":
        reason = stopped
    elif code == _NEVER:
        reason = (
            "the run that it waited for did not end as --after requires, so Slurm removed it "
            f"({_NEVER})"
        )
    else:
        reason = f"Slurm says {word}" + _NO_LAUNCH * (code == "JobLaunchFailure")
    return Job(
        id=job_id,
        name=name,
        task=job_id.partition("_")[2],
        state=state,
        word=word,
        reason=reason,
        is_suspended=stopped is not None,
        **values,
    )


def plain_reason(code: str) -> str:
    """Return a sentence for a reason as squeue gives it, with the code and the nodes that it names;
    or an unknown one as is."""
    name, _, rest = (part.strip() for part in code.strip("()").partition(","))
    words = _REASONS.get(name)
    if name.startswith(("Assoc", "QOS")):
        words = "a limit of your account or the QOS is reached, or it asks for more than that"
    if words is None:
        return f"Slurm gives the reason {name or 'None'}"
    if nodes := rest.partition("UnavailableNodes:")[2]:
        words += f": {nodes}"
    return words if name == "None" else f"{words} ({name})"


def parse_books(text: str) -> list[Job]:
    """Return the jobs in lines of sacct, in the form that is asked for: a job that was started
    again has a line for each of its lives, each followed by its steps'; ids may be used again."""
    jobs: dict[tuple[str, str], list[list[dict[str, str]]]] = {}
    lives: dict[str, list[dict[str, str]]] = {}
    for line in text.splitlines():
        cells = line.split("|", len(_FIELDS) - 1)
        if len(cells) != len(_FIELDS):
            continue
        row = dict(zip(_FIELDS, cells, strict=True))
        job_id, _, step = row["JobID"].partition(".")  # of steps 123_4.batch, .extern or .0
        if not step:
            lives[job_id] = [row]
            jobs.setdefault((job_id, row["JobName"]), []).append(lives[job_id])
        elif job_id in lives:
            lives[job_id].append(row)
    return [_sum_up(job_id, name, found) for (job_id, name), found in jobs.items()]


def _sum_up(job_id: str, name: str, lives: Sequence[Sequence[dict[str, str]]]) -> Job:
    """Sum up lives: the rows of each, that of the job first; the oldest life first."""
    jobs = [life[0] for life in lives]
    started = [(job, time_s) for job in jobs if (time_s := unix_time(job["Start"])) is not None]
    waits = [
        max(0.0, start_s - since_s)
        for job, start_s in started
        # Since no job that it depends on went on, and nothing held it.
        if (since_s := unix_time(job["Eligible"]) or unix_time(job["Submit"])) is not None
    ]
    elapsed = [float(job["ElapsedRaw"]) for job, _ in started if job["ElapsedRaw"].isdecimal()]
    sizes = [parse_size(row["MaxRSS"]) or 0 for life in lives for row in life]
    last = jobs[-1]
    code, has_ended = last["ExitCode"].partition(":")[0], unix_time(last["End"]) is not None
    word, reason = last["State"], last["Reason"]
    # A cancellation says by whom; but Slurm's own, of what could never start, does not.
    reason = _NEVER if (word, reason) == ("CANCELLED", "Dependency") else reason
    return _make_job(
        job_id,
        name,
        word.partition(" ")[0],
        reason,
        exit_code=int(code) if code.isdecimal() and has_ended else None,
        nodes=expand_nodes(last["NodeList"]),
        queue_wait_s=sum(waits) if waits else None,
        elapsed_s=sum(elapsed) if elapsed else None,
        max_rss_bytes=max(sizes) or None,
    )


def unix_time(text: str) -> float | None:
    """Return the time of 2026-11-21T13:36:39 in this machine's time zone; None for N/A."""
    return parse_time(text, "%Y-%m-%dT%H:%M:%S")


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def parse_setting(config: str, name: str) -> str | None:
    """Return the value in a line `Name = value`."""
    found = re.search(rf"^{name}\s*=\s*(\S+)\s*$", config, re.MULTILINE)
    return found[1] if found else None


def show_job(job_id: str, *, timeout_s: float = _TIMEOUT_S) -> str:
    """Return what scontrol says of a job, in one line; raises SchedulerError."""
    argv = ["scontrol", "--oneliner", "show", "job", job_id]
    return run_command(argv, timeout_s=timeout_s).stdout


def job_fields(text: str) -> dict[str, str]:
    """Return the fields of such a line."""
    return dict(re.findall(r"(\w+)=(\S*)", text))


def slurm_time(minutes: float) -> str:
    """Return a duration as sbatch reads it: D-HH:MM:SS, rounded up to seconds."""
    seconds = math.ceil(minutes * 60)
    days, rest = divmod(seconds, 24 * 3600)
    hours, rest = divmod(rest, 3600)
    return f"{days}-{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"


# The job that this process is part of. SIGTERM means many things: a preemption, with or without a
# grace period, an administrator's requeue, the time limit where the earlier warning was not enough,
# or a scancel. `scontrol show job` tells them apart.


def decide(verdict: Verdict, said: str, *, life: int) -> Decision:
    """Return what is to follow the end of a life, from what `show_job` says."""
    fields = job_fields(said)
    state, num_requeues = fields.get("JobState", ""), int(fields.get("Restarts") or 0)
    # Chosen to make room, perhaps with a grace period.
    is_preempted = fields.get("PreemptTime", "None") not in {"None", "Unknown"}
    if num_requeues > life or state in {"PENDING", "REQUEUED"}:  # one under way is counted
        # A preemption without a grace period looks like an administrator's requeue.
        cause: Cause = "preemption" if is_preempted else "requeue or preemption"
        return Decision(sequel="leave", cause=cause)
    if fields.get("Reason") == "TimeLimit":
        return Decision(sequel="requeue", cause="time_limit")
    if is_preempted:
        return Decision(sequel="requeue", cause="preemption")
    # After a cancellation there is no reason, and not soon an exit code.
    was_killed = fields.get("ExitCode", "").endswith(":9")
    if state == "COMPLETING" and was_killed and fields.get("Reason", "None") != "None":
        return Decision(sequel="requeue", cause="kill of the script")
    is_terminated = verdict.signal == "SIGTERM"
    if state in {"COMPLETING", "CANCELLED"}:
        return Decision(sequel="final", cause="cancel" if is_terminated else "nothing")
    # Somebody sent SIGTERM by hand, for no reason that Slurm knows of: the job is to end.
    return Decision(sequel="final" if is_terminated else "requeue", cause="nothing")


def with_lost_node(decision: Decision, said: str, hosts: Sequence[str]) -> Decision:
    """Return the decision with the first of the job's hosts that Slurm has lost, where it has lost
    one, from the lines of `sinfo --Node --format=%N|%T|%E`."""
    rows = (line.split("|", 2) for line in said.splitlines())
    states = {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}
    for node, host in enumerate(hosts):
        state, reason = states.get(host, ("", ""))
        # *: its slurmd does not respond.
        if state.startswith(("down", "fail")) or state.endswith("*"):
            why = state if reason in {"", "none"} else f"{state}, {reason}"
            lost = f"Slurm lost node {node} (host {host}: {why})"
            return msgspec.structs.replace(decision, node=node, host=host, lost=lost)
    return decision


# The site, for a first hpcdist.yaml.


def _leading_number(text: str) -> int:
    """Return 64, or the 64 of 64+, which says that some nodes have more."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def parse_gpus(gres: str) -> dict[str, int]:
    """GPUs by type in sinfo's words: gpu:a100:4(S:0-1),gpu:2, or (null)."""
    found: dict[str, int] = {}
    for kind, number in _GRES.findall(gres):
        found[kind] = found.get(kind, 0) + int(number)
    return found


def _limit_min(text: str) -> float | None:
    """Return a limit in sinfo's words in minutes; None: infinite, or not to be understood."""
    try:
        return parse_minutes(text, origin="sinfo")
    except UserError:
        return None


def detect_slurm(user: str) -> Site:
    """Ask Slurm what it offers; raises SchedulerError where it does not answer."""
    partitions = parse_sinfo(ask(*_SINFO))
    command = ("sacctmgr", "--noheader", "--parsable2", "show", "assoc", f"user={user}")
    accounts = ""
    with suppress(SchedulerError):  # many sites have none
        accounts = ask(*command, "format=account")
    # The plugin that knows --gpus-per-node.
    select = parse_setting(ask(*_CONFIG), "SelectType")
    return Site(
        scheduler="slurm",
        gpu_request="gpus-per-node" if select == "select/cons_tres" else "gres",
        partitions=tuple(partitions),
        accounts=tuple(dict.fromkeys(accounts.split())),
    )


def parse_sinfo(text: str) -> list[Partition]:
    """Return the partitions that are up, in the order of sinfo's lines."""
    found: dict[str, list[list[str]]] = {}
    for row in (line.split("|") for line in text.splitlines()):
        if len(row) == 7 and row[6] == "up" and row[1].isdecimal() and int(row[1]):
            found.setdefault(row[0], []).append(row)
    return [_partition(rows) for rows in found.values()]


def _partition(rows: Sequence[Sequence[str]]) -> Partition:
    """Return a partition from its lines; where some nodes have GPUs, those count."""
    gpus = [parse_gpus(row[4]) for row in rows]
    counted = [row for row, theirs in zip(rows, gpus, strict=True) if theirs] or rows
    types = list(dict.fromkeys(kind for theirs in gpus for kind in theirs))
    return Partition(
        name=rows[0][0].removesuffix("*"),
        is_default=rows[0][0].endswith("*"),
        num_nodes=sum(int(row[1]) for row in counted),
        cpus=min(_leading_number(row[2]) for row in counted),
        mem_gb=min(_leading_number(row[3]) for row in counted) / MIB_PER_GB,
        gpus=min((sum(theirs.values()) for theirs in gpus if theirs), default=0),
        # None where some GPUs have none: a request with a type would leave them out.
        gpu_types=() if "" in types else tuple(types),
        time_limit_min=_limit_min(rows[0][5]),
    )
