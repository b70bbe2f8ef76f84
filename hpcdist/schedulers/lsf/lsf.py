"""The LSF scheduler: what each question to it becomes in LSF's commands, the request of a job, and
starting a job again from within.

bsub's options are described at www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-bsub. bsub
reads #BSUB lines by itself, no shell does: a value with blanks, brackets or the like stands in
double quotes, and there is no way to put a double quote into it.

LSF does not say what it means by a signal. SIGUSR2 comes at the run limit. SIGINT, and SIGTERM
after it, come from a bkill, but also from an administrator's brequeue and from a preemption that
requeues: then what could be saved is saved, and LSF alone knows whether the job comes back. A job
whose first host is lost is LSF's to start again (-r): a brequeue would end it for good.
"""

# ruff: noqa: ARG002 - the protocol has the arguments
from __future__ import annotations

import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcdist.base.errors import ProfileError
from hpcdist.base.progress import poll
from hpcdist.cluster.channels import mail_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import (
    CommandTimeoutError,
    call_command,
    failure_of,
    run_command,
)
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.base import Allocation, Directive, Plan, Start, Target, unusable
from hpcdist.schedulers.batch import Batch
from hpcdist.schedulers.hosts import FIRST_END_VARIABLE, KILLED, Job, read_hosts
from hpcdist.schedulers.lsf.jobs import (
    ask_jobs,
    ask_rows,
    bkill,
    detect_lsf,
    parse_hosts,
    parse_reservations,
    parse_room,
    parse_time,
    refused_hint,
)
from hpcdist.schedulers.request import (
    asks_for_gpus,
    cpus_per_node,
    mem_gb_per_node,
    start_by_room,
    time_limit_min,
    try_to_ask,
)
from hpcdist.schedulers.requeue import Decision, RequeueRefusedError, RequeueUnclearError

_OF_A_JOB = re.compile(
    r"LSB_(?!SUB_|BJOBS_|BSUB_|DEFAULT|NTRIES)\w+|LS_JOBPID|LS_SUBCWD|LS_EXEC_T|HPCDIST_JOB_\w+"
)
"""Variables of a job that the caller may be part of: they would be taken for the new job's."""
_OF_FIRST_TASK = re.compile(
    r"LSB_(?!(?:JOBID|JOBINDEX|JOBNAME|QUEUE|MCPU_HOSTS|HOSTS|SUB_HOST|DJOB_\w+)$)\w+|LS_\w+"
)
"""Variables of what LSF has started on the first host."""
_TIMEOUT_S = 10.0
"""Limit of one call; what fails is tried again."""
_END_IS_KNOWN_S = 10.0
"""Time in which the program on the first host tells the others that its command has ended."""
_LOSS_IS_KNOWN_S = 60.0
"""Time for which LSF may call a lost host ok, and give it to jobs; it was 35 s."""
_DOWN = re.compile(r"LSF is down|not responding|cannot connect|time ?out", re.IGNORECASE)

_CONDITIONS = {"afterok": "done", "afterany": "ended"}
_SECTIONS = ("select", "order", "span", "rusage", "same", "cu", "affinity")
"""Sections of a requirement (-R), in the order that they are written in: select must be first."""
_SECTION = re.compile(r"(\w+)\s*\[([^\[\]]*)\]")


def own_id() -> str:
    """Return the id of the job that this process is part of; places in arrays are from 1 on."""
    job_id, index = os.environ["LSB_JOBID"], os.environ.get("LSB_JOBINDEX", "0")
    return job_id if index in ("", "0") else f"{job_id}[{index}]"


class Lsf(Batch):
    """Runs as LSF's jobs, or within one that is interactive (bsub -Is)."""

    name = "lsf"
    title = "LSF"
    version_command = ("bsub", "-V")
    template = "lsf.sh"
    warnings = ("SIGUSR2", "SIGINT", "SIGTERM")
    first_place = 1
    max_array_size = 1000  # MAX_JOB_ARRAY_SIZE of lsb.params
    merges = ("-R",)
    foreign_keys = ("qos",)
    allocation_variable = "LSB_JOBID"
    how_to_allocate = "bsub -Is -n 8 -R span[ptile=4] bash"
    launcher_advice = "name another in the profile, such as lsf.launcher: ssh {host} {command}"
    # At the run limit LSF leaves a job 10 minutes, where a site does not say otherwise; where it
    # ends a job sooner, the verdict on its last attempt is written.
    patience_s = 540.0
    kill_wait_s = 10.0
    leaves_out_nodes = True
    own_job_id = staticmethod(own_id)

    list_jobs = staticmethod(ask_jobs)
    kill = staticmethod(bkill)
    refused_hint = staticmethod(refused_hint)
    detect_site = staticmethod(detect_lsf)

    def directives(self, job: JobSpec, cluster: ClusterProfile, target: Target) -> list[Directive]:
        """Return the options of bsub, in a fixed order, ready to stand behind #BSUB. Raises
        ProfileError where LSF cannot be asked for one."""
        nodes, slots = job.resources.nodes, cpus_per_node(job, cluster)
        mem, mem_why = _mem(job, cluster)
        others = " && ".join(f"hname!={host}" for host in cluster.exclude)
        constraint = (
            f"({cluster.constraint})" if cluster.constraint and others else cluster.constraint
        )
        own = {
            "select": " && ".join(filter(None, [constraint, others])) or None,
            "span": f"ptile={slots}" if nodes > 1 else "hosts=1" if slots > 1 else None,
            "rusage": mem and f"mem={mem}",
        }
        why = [f"{slots} slots per host." if own["span"] else "", mem_why]
        name, log = target.name, "%J_report.out"  # %J and %I are the job's id and index
        if target.array_size is not None:  # from 1 on; hpcdist numbers an array's runs from 0
            name += f"[1-{target.array_size}]"
            name += f"%{target.max_parallel}" if target.max_parallel else ""
            log = "%J_%I_report.out"
        waits = " && ".join(
            f"{_CONDITIONS[one.kind]}({job_id})"
            for one in target.dependencies
            for job_id in one.job_ids
        )
        limit_min, mail = time_limit_min(job, cluster), mail_of(cluster.notify)
        resources, cpus = job.resources, "resources.cpus_per_gpu|cpus_per_gpu"
        num_slots = (
            f"Slots: {resources.gpus} GPUs per node x {slots // resources.gpus} CPUs per GPU, "
            f"{nodes * slots} in all."
        )
        memory = ("resources.mem_gb|mem_gb", "lsf.mem_per", "constraint", "exclude", "directives")
        asked: list[tuple[str, str | None, str, tuple[str, ...]]] = [
            ("-J", name, "The run's id, by which bjobs lists it; of a sweep with its array.", ()),
            ("-q", cluster.partition, "", ("partition",)),
            ("-P", cluster.account, "", ("account",)),
            ("-n", str(nodes * slots), num_slots, ("resources.nodes", "resources.gpus", cpus)),
            ("-R", _requirement(cluster.directives, own), " ".join(filter(None, why)), memory),
            (
                "-gpu",
                _gpu(job, cluster),
                "GPUs per host.",
                ("resources.gpus", "lsf.gpu", "gpu_type"),
            ),
            (
                "-W",
                None if limit_min is None else lsf_time(limit_min),
                "Time limit, as HH:MM.",
                ("resources.time_limit_min|time_limit_min",),
            ),
            ("-r", "" if job.launch.requeue else None, "", ("launch.requeue",)),
            ("-o", f"{target.submitit_folder}/{log}", "LSF's own report on the job.", ()),
            ("-N", None if mail is None else "", "", ("notify",)),
            ("-u", mail or None, "", ("notify",)),
            ("-w", waits or None, "Jobs that must have ended: --after, or --max-parallel.", ()),
        ]
        return [
            Directive(f"{option} " if value else option, _quoted(value), reason, keys)
            for option, value, reason, keys in asked
            if value is not None
        ]

    def list_hosts(self, cluster: ClusterProfile) -> list[str]:
        lines = run_command(["bhosts", "-w"], timeout_s=_TIMEOUT_S).stdout.splitlines()[1:]
        return [line.split()[0] for line in lines if line.strip()]

    def script_values(self, job: JobSpec, target: Target, plan: Plan) -> dict[str, Any]:
        return {"launcher": plan.cluster.lsf.launcher}

    def submit_command(self, target: Target, script: str) -> list[str]:
        return ["bsub"]

    def parse_submitted(self, text: str) -> str | None:
        found = re.search(r"Job <(\d+)> is submitted", text)
        return found[1] if found else None

    def environment(self, before: Mapping[str, str], target: Target, script: str) -> dict[str, str]:
        """Return the caller's environment, which LSF gives to the job, without another job's; what
        starts at once in an allocation keeps that one's."""
        of_a_job = _OF_A_JOB if target.allocation is None else re.compile(r"HPCDIST_JOB_\w+")
        return {key: value for key, value in before.items() if not of_a_job.fullmatch(key)}

    def foresee(self, job: JobSpec, plan: Plan, target: Target, timeout_s: float) -> Start:
        """Look for free slots: LSF says when a job starts of those alone that it has."""
        room = parse_room(run_command(["bhosts", "-w"], timeout_s=timeout_s).stdout)
        slots = cpus_per_node(job, plan.cluster)
        return start_by_room(sum(one >= slots for one in room), job)

    def outlook(self, cluster: ClusterProfile) -> tuple[list[float], list[str]]:
        return parse_reservations(try_to_ask("brsvs", "-w")), []

    # Jobs that are interactive.

    def allocation(self, job_id: str, environment: Mapping[str, str]) -> Allocation:
        rows = [row for row in ask_rows([job_id]) if row.get("stat") == "RUN"]
        if not rows:
            raise unusable(self, job_id, "LSF has no such job that runs")
        end_s = parse_time(rows[0].get("finish_time", ""))
        return Allocation(
            job_id=job_id,
            num_nodes=len(read_hosts(environment.get("LSB_MCPU_HOSTS", ""))),
            left_min=None if end_s is None else max(0.0, (end_s - time.time()) / 60),
        )

    # Within a job.

    def job_on_hosts(self) -> Job:
        # Source: IBM Spectrum LSF 10.1 documentation, Environment variables set for job execution.
        return Job(read_hosts(os.environ["LSB_MCPU_HOSTS"]), _OF_FIRST_TASK)

    def decide(self, verdict: Verdict) -> Decision:
        """Answer the run limit, and the loss of a host, by a requeue; never a kill."""
        if verdict.left_out:  # LSF would give the job the same hosts
            return Decision(sequel="final", cause="nothing")
        end: str | None = ""
        if verdict.kind == "agent_lost" and verdict.node == 0:
            # The program that starts the agents outlives the first host's; where it is silent, too,
            # that host is gone.
            file = Path(os.environ.get(FIRST_END_VARIABLE, ""))
            poll(lambda: file.is_file() or None, interval_s=1.0, limit_s=_END_IS_KNOWN_S)
            end = file.read_text() if file.is_file() else None
        if verdict.kind == "preempted" or end == KILLED:
            return Decision(sequel="open", cause="kill or requeue")
        if end is None:
            return Decision(sequel="leave", cause="nothing")
        is_limit = verdict.kind == "time_limit"
        return Decision(sequel="requeue", cause="time_limit" if is_limit else "nothing")

    def requeue(self, run: Run) -> None:
        """Call brequeue, which ends this job's processes, and queues it again."""
        end = run.read_attempt_verdict(run.newest_attempt())
        if end is not None and end.try_elsewhere:  # the job would be given the lost host once more

            def is_time() -> bool | None:
                is_ok = end.host in parse_hosts(try_to_ask("bhosts", "-w"))
                return run.cancel_file.exists() or not is_ok or None

            poll(is_time, interval_s=2.0, limit_s=_LOSS_IS_KNOWN_S)
        try:
            done = call_command(["brequeue", own_id()], timeout_s=_TIMEOUT_S)
        except CommandTimeoutError as error:
            raise RequeueUnclearError(f"LSF may start it again, or not: {error.message}") from None
        if done.returncode == 0:
            return
        refusal = failure_of(done)
        if _DOWN.search(refusal.said):
            raise refusal
        raise RequeueRefusedError(refusal.message)


scheduler = Lsf()


def lsf_time(minutes: float) -> str:
    """Return a duration as bsub -W reads it: HH:MM, rounded up, and never with seconds."""
    hours, rest = divmod(math.ceil(minutes), 60)
    return f"{hours:02d}:{rest:02d}"


def _quoted(value: str) -> str:
    if '"' in value or "\\" in value:
        raise ProfileError(
            f"the cluster profile: {value} cannot stand in a #BSUB line",
            hint='bsub reads it in double quotes: remove " and \\',
        )
    return value if re.fullmatch(r"[\w./:-]*", value) else f'"{value}"'


def _mem(job: JobSpec, cluster: ClusterProfile) -> tuple[str | None, str]:
    """Return the memory for one slot, host or job, as the site means it, rounded up; and how it
    comes about."""
    mem_gb = mem_gb_per_node(job, cluster)
    if mem_gb is None:
        return None, ""
    per, nodes, slots = cluster.lsf.mem_per, job.resources.nodes, cpus_per_node(job, cluster)
    share, number = {"slot": (1 / slots, nodes * slots), "host": (1, nodes), "job": (nodes, 1)}[per]
    # Without the rounding, the noise of a division would become a unit more.
    amount_mb = math.ceil(round(mem_gb * 1e3 * share, 6))
    in_all = f"{amount_mb / 1e3 * number:g} GB in all"
    return f"{amount_mb}MB", f"{mem_gb:g} GB per node is {amount_mb} MB per {per}, {in_all}."


def _gpu(job: JobSpec, cluster: ClusterProfile) -> str | None:
    """Return the value of -gpu; None: it is not sent."""
    if not asks_for_gpus(job, cluster) or cluster.lsf.gpu is None:
        return None
    text = cluster.lsf.gpu.replace("{gpus}", str(job.resources.gpus))
    return f"{text}:gmodel={cluster.gpu_type}" if cluster.gpu_type else text


def _requirement(directives: Iterable[str], own: Mapping[str, str | None]) -> str | None:
    """Return the -R of the profile's directives and hpcdist's own sections as one requirement that
    asks for all: IBM's bsub takes several -R and merges them, others refuse that. What stands in no
    section belongs to select; of a resource in rusage hpcdist's own has the word."""
    sections: defaultdict[str, list[str]] = defaultdict(list)
    resource = (own["rusage"] or "").partition("=")[0]
    for directive in (one for one in directives if one.startswith("-R")):
        text = directive.removeprefix("-R").strip().strip("\"'")
        for name, content in _SECTION.findall(text) or [("select", text)]:
            if name not in _SECTIONS or (name == "span" and own["span"]):
                raise ProfileError(
                    f"the cluster profile: directives has {directive}, which does not go together "
                    "with the -R that hpcdist sends",
                    hint='write -R "select[...] rusage[...]"; --nodes and --gpus say the span',
                )
            terms = [one for one in content.split(":") if one.partition("=")[0] != resource]
            sections[name] += [":".join(terms)] if terms else []
    for name, text_or_none in own.items():
        sections[name] += [text_or_none] if text_or_none else []
    if len(sections["select"]) > 1:
        sections["select"] = [f"({one})" for one in sections["select"]]
    # With a colon: old engines know no comma.
    joined = {
        name: (" && " if name == "select" else ":").join(sections[name]) for name in _SECTIONS
    }
    return " ".join(f"{name}[{text}]" for name, text in joined.items() if text) or None
