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
import shlex
import shutil
import signal
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.channels import mail_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Site
from hpcdist.job.spec import JobSpec, warning_before_s
from hpcdist.machine.command import CommandFailedError, run_command
from hpcdist.machine.containers import RUNTIMES
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import State, Verdict
from hpcdist.schedulers.base import (
    Allocation,
    Directive,
    Finding,
    JobPlace,
    Plan,
    Target,
    former_lives,
    unusable,
    warned,
)
from hpcdist.schedulers.batch import Batch, Job
from hpcdist.schedulers.request import (
    asks_for_gpus,
    cpus_per_node,
    mem_gb_per_node,
    parse_size,
    parse_time,
    time_limit_min,
)
from hpcdist.schedulers.requeue import Cause, Decision
from hpcdist.schedulers.slurm import site
from hpcdist.schedulers.slurm.nodes import expand_nodes
from hpcdist.schedulers.slurm.site import MIB_PER_GB, job_fields, show_job, slurm_time

_TIMEOUT_S = 30.0
_BOOKS_TIMEOUT_S = 20.0
_OWN_JOB_TIMEOUT_S = 10.0
"""Limit of one call from within a job; what fails is tried again."""
_ENTER_S = 60
_IDS_AT_ONCE = 5000
"""Ids of jobs in one command line, of which Linux takes 128 KiB."""

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
    "SUSPENDED": (
        "Slurm has suspended it: it continues when it is resumed (scontrol resume JOBID, or "
        "when the job that has its nodes ends)"
    ),
    "STOPPED": (
        "its processes were stopped by SIGSTOP: scancel --signal=CONT JOBID lets them continue"
    ),
}
"""States of jobs that have their nodes and do nothing -> in plain words."""
_REASONS = {
    "BeginTime": "its start time has not come; a requeued job is held for about two minutes",
    "Cleaning": "it was requeued, and its former processes are still being ended",
    "Dependency": "it waits for the end of another job",
    "DependencyNeverSatisfied": "the job that it waits for failed: it will never start",
    "JobArrayTaskLimit": "as many runs of the sweep as --max-parallel allows are active",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held; release it with: scontrol release JOBID",
    "Licenses": "it waits for licenses",
    "NodeDown": "a node that it needs is down",
    "None": "the scheduler has not looked at it yet",
    "PartitionConfig": "it asks for more than the nodes of the partition have",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs at present",
    "PartitionNodeLimit": "it asks for more nodes than the partition has",
    "PartitionTimeLimit": "its time limit is longer than the partition allows",
    "Priority": "other jobs come before it",
    "ReqNodeNotAvail": "nodes that it needs are reserved or down, perhaps for maintenance",
    "Reservation": "its reservation has not begun",
    "Resources": "it waits for nodes to become free",
    "launch failed requeued held": "its start failed on a node, and it is held; release it with: "
    "scontrol release JOBID",
}
_LIMITS = (
    ("WallDurationPerJob", "its time limit is longer than {} allows"),
    ("PerJob", "it asks for more than {} allows a job"),
    ("", "{} has as much as it may have at one time"),
)
"""Part of a reason that begins with Assoc or QOS -> in plain words, of your account or the QOS."""
_NEVER = "DependencyNeverSatisfied"
_WHY_ENDED = {
    "JobLaunchFailure": "its first node could not start its script, as where that node cannot "
    "write the runs folder",
}
_TAKEN_OUT = "Slurm took it out of its array before it started (scancel)"
_SQUEUE = ("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T|%r|%S|%j")
"""The name comes last: it may hold what separates."""
_ACCOUNTING = ("sacct", "--noheader", "--allocations", "--format=JobID", "--starttime=now")
_FIELDS = (
    *("JobID", "State", "Reason", "ExitCode", "Submit", "Eligible", "Start", "End", "ElapsedRaw"),
    *("NodeList", "MaxRSS", "ConsumedEnergyRaw", "JobName"),
)
_NO_VALUE = 0xFFFF_FFFE
"""NO_VAL of slurm.h; as many or more stand for not known, as 0 does where nothing measures."""
_NO_BOOKS = re.compile(r"accounting storage is disabled", re.IGNORECASE)

# Its requests.

_KEPT = frozenset(("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_JWT"))
_SITES_OWN = {
    **{f"--{name}=": f"SBATCH_{name.upper()}" for name in ("account", "partition", "qos")},
    **{f"--{name}=": f"SBATCH_{name.upper()}" for name in ("reservation", "constraint")},
    "--time=": "SBATCH_TIMELIMIT",
}
"""Options -> variables by which a site or its users say what is the same for all jobs."""
_CPUS = "resources.cpus_per_gpu|cpus_per_gpu"
_GPUS = ("resources.gpus", "gpu_request", "gpu_type")
_LIMIT = "resources.time_limit_min|time_limit_min"


class Slurm(Batch):
    """Runs as Slurm's jobs, or as steps of an allocation."""

    name = "slurm"
    title = "Slurm"
    container_runtimes = RUNTIMES
    version_command = ("sbatch", "--version")
    allocation_variable = "SLURM_JOB_ID"
    how_to_allocate = "salloc --nodes=2"
    template = "slurm.sh"
    warnings = ("SIGUSR2", "SIGTERM")
    warns_in_time = True
    element = "{}_{}"
    unclear = re.compile(r"timed out|zero bytes|receive failure|reset by peer", re.IGNORECASE)
    needed = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
    stuck_hint = "their nodes may be down; see: scontrol show job JOBID"

    def check(self, job: JobSpec, cluster: ClusterProfile) -> None:
        site.check_capacity(job, cluster, site.ask_nodes())

    def directives(self, job: JobSpec, cluster: ClusterProfile, target: Target) -> list[Directive]:
        """Return the options of sbatch, in a fixed order."""
        resources, quote = job.resources, shlex.quote
        found = [
            Directive("--job-name=", quote(target.name), "The run's id, by which squeue lists it.")
        ]
        found += [
            Directive(f"--{name}=", quote(value), keys=(name,))
            for name in ("partition", "account", "qos", "constraint")
            if (value := getattr(cluster, name)) is not None
        ]
        cpus = cpus_per_node(job, cluster)
        found += [
            Directive("--nodes=", str(resources.nodes), keys=("resources.nodes",)),
            Directive("--ntasks-per-node=", "1", "One agent per node, which forks its ranks."),
            Directive(
                "--cpus-per-task=",
                str(cpus),
                f"CPUs of the agent, which are those of its ranks: {resources.gpus} GPUs per node "
                f"x {cpus // resources.gpus} CPUs per GPU, {resources.nodes * cpus} in all.",
                ("resources.gpus", _CPUS),
            ),
        ]
        if asks_for_gpus(job, cluster):
            kind = f"{cluster.gpu_type}:" if cluster.gpu_type else ""
            option = "--gres=gpu:" if cluster.gpu_request == "gres" else "--gpus-per-node="
            found.append(
                Directive(option, quote(f"{kind}{resources.gpus}"), "GPUs per node.", _GPUS)
            )
        if (mem_gb := mem_gb_per_node(job, cluster)) is not None:
            why = f"{mem_gb:g} GB per node; sbatch's M is 2**20 bytes."
            mem = f"{math.ceil(mem_gb * MIB_PER_GB)}M"
            found.append(Directive("--mem=", mem, why, ("resources.mem_gb|mem_gb",)))
        limit_min = time_limit_min(job, cluster)
        if limit_min is not None:
            why = "Time limit, as D-HH:MM:SS."
            found.append(Directive("--time=", slurm_time(limit_min), why, (_LIMIT,)))
        # Slurm looks at limits every 30 s or so, and may warn up to 60 s earlier than asked.
        found.append(
            Directive(
                "--signal=USR2@",
                str(math.ceil(warning_before_s(job.launch, limit_min))),
                "Slurm sends SIGUSR2 so many seconds before the time limit, and the ranks save a "
                "checkpoint; at most a quarter of the limit.",
                ("launch.warning_s", _LIMIT),
            )
        )
        requeue = "--requeue" if job.launch.requeue else "--no-requeue"
        found.append(Directive(requeue, keys=("launch.requeue",)))
        if (address := mail_of(cluster.notify)) is not None:  # of an array one, at its end
            found.append(Directive("--mail-type=", "END,FAIL", keys=("notify",)))
            found += [Directive("--mail-user=", quote(address), keys=("notify",))] * bool(address)
        why = "The job's own output, before and around that of the ranks."
        found += [
            Directive("--output=", quote(log_pattern(target, "0")), why),
            Directive("--open-mode=", "append", "A requeued job adds to its output."),
        ]
        if target.array_size is not None:
            limit = f"%{target.max_parallel}" if target.max_parallel else ""
            why = "Runs of the sweep that differ in nothing here; %: --max-parallel."
            found.append(Directive("--array=", f"0-{target.array_size - 1}{limit}", why))
        if target.dependencies:
            named = [":".join([one.kind, *one.job_ids]) for one in target.dependencies]
            why = "Jobs that must have ended: --after, or --max-parallel."
            found.append(Directive("--dependency=", quote(",".join(named)), why))
            # Without it, a job whose dependency can never come true would wait for ever.
            why = "A job that would wait in vain ends."
            found.append(Directive("--kill-on-invalid-dep=", "yes", why))
        return found

    def script_values(self, job: JobSpec, target: Target, plan: Plan) -> dict[str, Any]:
        return {
            "name": target.name,
            "step_options": "".join(f" {option}" for option in plan.step_options),
            "cpus_per_node": cpus_per_node(job, plan.cluster),
            "output": log_pattern(target, "%t"),
        }

    def submit_command(self, target: Target, script: str) -> list[str]:
        return ["sbatch"]

    def parse_submitted(self, text: str) -> str | None:
        found = re.search(r"\bbatch job (\d+)", text)
        return found[1] if found else None

    def environment(self, before: Mapping[str, str], target: Target, script: str) -> dict[str, str]:
        """Return the caller's environment, without what would change the job unseen.

        Variables win over directives in sbatch, so those of the script's own directives are left
        out. Variables of a job that this shell is part of would be taken for the new job's; of an
        allocation srun finds all by its id.
        """
        own = (name for key, name in _SITES_OWN.items() if f"#SBATCH {key}" not in script)
        kept = {*_KEPT, *own}
        found = {
            name: value
            for name, value in before.items()
            if name in kept or not name.startswith(("SLURM_", "SBATCH_"))
        }
        return found | ({"SLURM_JOB_ID": target.allocation} if target.allocation else {})

    def refused_hint(self, said: str, script: str) -> str:
        return f"{super().refused_hint(said, script)}, and the cluster with sinfo"

    def list_jobs(self, ids: Collection[str]) -> list[Job]:
        """Ask squeue once, and sacct once where squeue does not know all of them any more. Of an
        element of an array that is cancelled before it starts neither says anything any more."""
        jobs = parse_queue(run_command(_SQUEUE, timeout_s=_TIMEOUT_S).stdout)
        missing = set(ids).difference(job.id for job in jobs)
        if not missing:
            return jobs
        try:
            jobs += self.books(sorted(missing))
        except SchedulerError as error:  # the books may know the end, when they are open again
            reason = f"squeue has forgotten its job, and {error.message}"
            return jobs + [Job(id=one, name="", state="unknown", reason=reason) for one in missing]
        missing.difference_update(job.id for job in jobs)
        arrays = {job.id.partition("_")[0] for job in jobs if job.task}
        return jobs + [
            Job(id=one, name="", state="cancelled", word="CANCELLED", reason=_TAKEN_OUT)
            for one in missing
            if "_" in one and one.partition("_")[0] in arrays
        ]

    def books(self, ids: Collection[str]) -> list[Job]:
        """Ask sacct; return nothing where there is none, or it keeps no books."""
        if shutil.which("sacct") is None:
            return []
        wanted, jobs = sorted({one.partition("_")[0] for one in ids}), []
        argv = ["sacct", "--duplicates", "--noheader", "--parsable2", "--noconvert"]
        environment = os.environ | {"SLURM_TIME_FORMAT": "standard"}
        for start in range(0, len(wanted), _IDS_AT_ONCE):
            named = f"--jobs={','.join(wanted[start : start + _IDS_AT_ONCE])}"
            words = [*argv, f"--format={','.join(_FIELDS)}", named]
            try:
                done = run_command(words, timeout_s=_BOOKS_TIMEOUT_S, environment=environment)
            except CommandFailedError as error:
                if _NO_BOOKS.search(error.said):
                    return []
                raise
            jobs += parse_books(done.stdout)
        return jobs

    def kill(self, ids: Collection[str]) -> None:
        if ids:
            run_command(["scancel", "--quiet", *ids], timeout_s=_TIMEOUT_S)

    max_array_size = staticmethod(site.ask_max_array_size)
    cluster_name = staticmethod(site.ask_cluster)

    def allocation(self, job_id: str, environment: Mapping[str, str]) -> Allocation:
        try:
            said = show_job(job_id)
        except CommandFailedError as error:
            raise unusable(self, job_id, error.said) from None
        state = job_fields(said).get("JobState", "unknown")
        if state not in {"RUNNING", "SUSPENDED"}:
            raise unusable(self, job_id, f"its state is {state}")
        return site.parse_allocation(job_id, said, environment)

    def plan_step(self, job: JobSpec, cluster: ClusterProfile, allocation: Allocation) -> Plan:
        plan = super().plan_step(job, cluster, allocation)
        options = site.step_options(job, cluster, allocation)
        return msgspec.structs.replace(plan, step_options=options)

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

    def requeue(self, run: Run) -> None:
        run_command(["scontrol", "requeue", self.own_job_id()], timeout_s=_OWN_JOB_TIMEOUT_S)

    def detect_site(self) -> Site:
        return site.detect_slurm(getpass.getuser())

    def examine(self, job: JobSpec, cluster: ClusterProfile) -> Iterator[Finding]:
        yield from super().examine(job, cluster)
        try:
            run_command(_ACCOUNTING, timeout_s=_TIMEOUT_S)
        except SchedulerError as error:
            why = "nothing to do: of jobs that Slurm has forgotten, the run directory tells the end"
            yield warned("accounting", error.message, why)

    def try_script(self, script: str) -> Finding:
        target = Target(name="", folder=Path(), cwd="")
        return site.try_script(script, self.environment(os.environ, target, script))


scheduler = Slurm()


def log_pattern(target: Target, task: str) -> str:
    """Return where the output of a task goes; %t is its number in srun."""
    job = "%j" if target.array_size is None else "%A_%a"
    return f"{target.submitit_folder}/{job}_{task}_log.out"


# Reading.


def parse_queue(text: str) -> list[Job]:
    """Return the lines of `squeue --format=%i|%T|%r|%S|%j`."""
    rows = (line.split("|", 4) for line in text.splitlines())
    return [
        _make_job(row[0], row[4], row[1], row[2], expected_start_s=unix_time(row[3]))
        for row in rows
        if len(row) == 5
    ]


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
        why = f": {_WHY_ENDED[code]} ({code})" if code in _WHY_ENDED else ""
        reason = f"Slurm says {word}{why}"
    if state != "pending":
        values["expected_start_s"] = None
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
    for prefix, who in (("Assoc", "your account"), ("QOS", "the QOS")):
        if name.startswith(prefix):
            words = next(text.format(who) for part, text in _LIMITS if part in name)
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
            for one in _elements(job_id):
                lives[one] = [row]
                jobs.setdefault((one, row["JobName"]), []).append(lives[one])
        elif job_id in lives:
            lives[job_id].append(row)
    return [_sum_up(job_id, name, found) for (job_id, name), found in jobs.items()]


def _elements(job_id: str) -> list[str]:
    """Return 7_1, 7_3, 7_4 and 7_5 for 7_[1,3-5%2], and the id itself for another."""
    array, bracket, inner = job_id.partition("_[")
    if not bracket:
        return [job_id]
    ranges = re.findall(r"(\d+)(?:-(\d+))?(?::(\d+))?", inner.rstrip("]").partition("%")[0])
    return [
        f"{array}_{number}"
        for first, last, step in ranges
        for number in range(int(first), int(last or first) + 1, int(step or 1))
    ]


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
    # In older versions only the steps' rows have values.
    energy = [_joules(life[:1]) or _joules(life[1:]) for life in lives]
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
        energy_j=sum(energy) or None,
    )


def _joules(rows: Iterable[dict[str, str]]) -> float:
    texts = [row["ConsumedEnergyRaw"] for row in rows]
    return sum(float(one) for one in texts if one.isdecimal() and 0 < int(one) < _NO_VALUE)


def unix_time(text: str) -> float | None:
    """Return the time of 2026-11-21T13:36:39 in this machine's time zone; None for N/A."""
    return parse_time(text, "%Y-%m-%dT%H:%M:%S")


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


# The job that this process is part of. SIGTERM means many things: a preemption, with or without a
# grace period, an administrator's requeue, the time limit where the earlier warning was not enough,
# or a scancel. `scontrol show job` tells them apart.


def decide(verdict: Verdict, said: str, *, life: int) -> Decision:
    """Return what is to follow the end of a life, from what `show_job` says."""
    fields = job_fields(said)
    state, num_requeues = fields.get("JobState", ""), int(fields.get("Restarts") or 0)
    exit_code, reason = fields.get("ExitCode", ""), fields.get("Reason", "None")
    # Chosen to make room, perhaps with a grace period.
    is_preempted = fields.get("PreemptTime", "None") not in {"None", "Unknown"}
    if num_requeues > life or state in {"PENDING", "REQUEUED"}:  # one under way is counted
        # A preemption without a grace period looks like an administrator's requeue.
        cause: Cause = "preemption" if is_preempted else "requeue or preemption"
        return Decision(sequel="leave", cause=cause)
    if reason == "TimeLimit":
        return Decision(sequel="requeue", cause="time_limit")
    if is_preempted:
        return Decision(sequel="requeue", cause="preemption")
    # After a cancellation there is no reason, and not soon an exit code.
    was_killed = exit_code.endswith(f":{signal.SIGKILL.value}") and reason != "None"
    if state == "COMPLETING" and was_killed:
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
