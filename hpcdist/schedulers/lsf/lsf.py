"""The LSF scheduler: what each question to it becomes in LSF's commands, the request of a job, and
starting a job again from within.

bsub's options are described at www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-bsub. bsub
reads #BSUB lines by itself, no shell does: a value with blanks, brackets or the like stands in
double quotes, and there is no way to put a double quote into it. An LSF may misread an option that
it does not know by its first letters, silently: none is sent that lsf.options does not list.

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
import secrets
import shlex
import shutil
import stat
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdist.base import files
from hpcdist.base.errors import ProfileError
from hpcdist.base.polling import poll
from hpcdist.cluster.channels import mail_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import CommandTimeoutError, call_command, failure_of
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.base import Allocation, Directive, Plan, Target, unusable
from hpcdist.schedulers.batch import Batch
from hpcdist.schedulers.hosts import FIRST_END_VARIABLE, KILLED, read_hosts
from hpcdist.schedulers.lsf import site
from hpcdist.schedulers.lsf.hosts import own_id
from hpcdist.schedulers.lsf.jobs import ask_jobs, ask_rows, bkill, parse_time, refused_hint
from hpcdist.schedulers.request import (
    asks_for_gpus,
    cpus_per_node,
    mem_gb_per_node,
    time_limit_min,
)
from hpcdist.schedulers.requeue import Decision, RequeueRefusedError, RequeueUnclearError

_OF_A_JOB = re.compile(
    r"LSB_(?!SUB_|BJOBS_|BSUB_|DEFAULT|NTRIES)\w+|LS_JOBPID|LS_SUBCWD|LS_EXEC_T|HPCDIST_JOB_\w+"
)
"""Variables of a job that the caller may be part of: they would be taken for the new job's."""
_TIMEOUT_S = 10.0
"""Limit of one call; what fails is tried again."""
_END_IS_KNOWN_S = 10.0
"""Time in which the program on the first host tells the others that its command has ended."""
_LOSS_IS_KNOWN_S = 60.0
"""Time for which LSF may call a lost host ok, and give it to jobs; it was 35 s."""
_POLL_S = 1.0
_DOWN = re.compile(r"LSF is down|not responding|cannot connect|time ?out", re.IGNORECASE)

_PER_GB = {"suffix": 1e3, "KB": 1e6, "MB": 1e3, "GB": 1.0}
"""Unit of rusage[mem=...] -> how many are 10**9 bytes; LSF's own MB may be 5 % more."""
_CONDITIONS = {"afterok": "done", "afterany": "ended"}
_SECTIONS = ("select", "order", "span", "rusage", "same", "cu", "affinity")
"""Sections of a requirement (-R), in the order that they are written in: select must be first."""
_ALLOWED = {*_SECTIONS} - {"span"}
_OWN = re.compile(r"-(?:[JqPnWwrQKoeio]|nnodes|gpu|oo|eo|ti|rn|I\w*|is|Zs|pack)(?![\w-])|-[nW]\d")
"""Options that hpcdist sends itself, or that make another job of it."""
_SECTION = re.compile(r"(\w+)\s*\[([^\[\]]*)\]")


class Lsf(Batch):
    """Runs as LSF's jobs, or within one that is interactive (bsub -Is)."""

    name = "lsf"
    title = "LSF"
    version_command = ("bsub", "-V")
    template = "lsf.sh"
    warnings = ("SIGUSR2", "SIGINT", "SIGTERM")
    first_place = 1
    patterns = '%\\\n"'
    merges = ("-R",)
    allocation_variable = "LSB_JOBID"
    how_to_allocate = "bsub -Is -n 8 -R span[ptile=4] bash"
    launcher_advice = "name another in the profile, such as lsf.launcher: ssh {host} {command}"
    needed = ("bsub", "bjobs", "bkill", "bqueues")
    stuck_hint = "their hosts may be down; bkill -r JOBID takes them from LSF's list"
    # At the run limit LSF leaves a job 10 minutes, where a site does not say otherwise; where it
    # ends a job sooner, the verdict on its last attempt is written.
    patience_s = 540.0
    kill_wait_s = 10.0

    check = staticmethod(site.check_queue)
    list_jobs = staticmethod(ask_jobs)
    kill = staticmethod(bkill)
    refused_hint = staticmethod(refused_hint)
    own_job_id = staticmethod(own_id)
    max_array_size = staticmethod(site.max_array_size)
    detect_site = staticmethod(site.detect_lsf)

    def __init__(self) -> None:
        self._is_unclear = False
        """LSF may have heard a request that it did not answer: one more could be the run twice."""

    def directives(self, job: JobSpec, cluster: ClusterProfile, target: Target) -> list[Directive]:
        """Return the options of bsub, in a fixed order, ready to stand behind #BSUB.

        Raises ProfileError where one that is needed is not allowed, or LSF cannot be asked for it.
        """
        _check(cluster)
        nodes, slots = job.resources.nodes, cpus_per_node(job, cluster)
        gpu, gpu_rusage = _gpu_request(job, cluster)
        mem, mem_why = _mem(job, cluster)
        own = {
            "select": cluster.constraint,
            "span": f"ptile={slots}" if nodes > 1 else "hosts=1" if slots > 1 else None,
            "rusage": ":".join(filter(None, [mem and f"mem={mem}", gpu_rusage])),
        }
        why = [f"{slots} slots per host." if own["span"] else "", mem_why]
        why += [f"GPUs per host: {gpu_rusage}."] if gpu_rusage else []
        name, log = target.name, "%J"  # %J and %I are the job's id and index
        if target.array_size is not None:  # from 1 on; hpcdist numbers an array's runs from 0
            name += f"[1-{target.array_size}]"
            name += f"%{target.max_parallel}" if target.max_parallel else ""
            log = "%J_%I"
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
        memory = (
            "resources.mem_gb|mem_gb",
            "lsf.mem_per",
            "lsf.mem_unit",
            "constraint",
            "directives",
        )
        asked: list[tuple[str, str | None, str, tuple[str, ...]]] = [
            ("-J", name, "The run's id, by which bjobs lists it; of a sweep with its array.", ()),
            ("-q", cluster.partition, "", ("partition",)),
            ("-P", cluster.account, "", ("account",)),
            ("-n", str(nodes * slots), num_slots, ("resources.nodes", "resources.gpus", cpus)),
            ("-R", _requirement(cluster.directives, own), " ".join(filter(None, why)), memory),
            ("-gpu", gpu, "GPUs per host.", ("resources.gpus", "lsf.gpu", "gpu_type")),
            (
                "-W",
                None if limit_min is None else lsf_time(limit_min),
                "Time limit, as HH:MM.",
                ("resources.time_limit_min|time_limit_min",),
            ),
            ("-r", "" if job.launch.requeue else None, "", ("launch.requeue",)),
            ("-o", f"{target.submitit_folder}/{log}_lsf.out", "LSF's own report on the job.", ()),
            ("-N", None if mail is None else "", "", ("notify",)),
            ("-u", mail or None, "", ("notify",)),
            ("-w", waits or None, "Jobs that must have ended: --after, or --max-parallel.", ()),
        ]
        found: list[Directive] = []
        for option, value, reason, keys in asked:
            if value is None:
                continue
            is_allowed = option in cluster.lsf.options or (option == "-R" and not any(own.values()))
            if not is_allowed and option != "-r":  # without which a job does as well
                raise ProfileError(
                    f"the cluster profile: lsf.options does not list {option}, which hpcdist "
                    f"needs: {option} {value}",
                    hint=f"add {option} to lsf.options, or leave out what asks for it",
                )
            if is_allowed:
                # Without -ti what waits in vain waits for ever.
                ends = " -ti" if option == "-w" and "-ti" in cluster.lsf.options else ""
                flag = f"{option} " if value else option
                found.append(Directive(flag, _quoted(value) + ends, reason, keys))
        return found

    def script_values(self, job: JobSpec, target: Target, plan: Plan) -> dict[str, Any]:
        first = "" if target.allocation is None else " --first"
        return {"launcher": plan.cluster.lsf.launcher, "first": first}

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

    def enter(self, run: Run, host: str, command: Sequence[str], *, is_terminal: bool) -> list[str]:
        """Return battach of LSF 10.1, which starts one program without arguments in the place of a
        shell, as the user on that host of the job."""
        if shutil.which("battach") is None:
            return super().enter(run, host, command, is_terminal=is_terminal)
        script = run.launch_folder.resolve() / f"attach-{secrets.token_hex(4)}.sh"
        text = f'#!/bin/sh\n/bin/rm -f "$0"\nexec {shlex.join(command)}\n'
        files.write_whole(script, text.encode())
        script.chmod(stat.S_IRWXU)
        return ["battach", "-m", host, "-L", str(script), run.read_job_id() or ""]

    # Jobs that are interactive.

    def allocation(self, job_id: str, environment: Mapping[str, str]) -> Allocation:
        rows = [row for row in ask_rows([job_id]) if row.get("stat") == "RUN"]
        if not rows:
            raise unusable(self, job_id, "LSF has no such job that runs")
        hosts = read_hosts(environment.get("LSB_MCPU_HOSTS", ""))
        end_s = parse_time(rows[0].get("finish_time", ""))
        gpus = [one for one in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
        return Allocation(
            job_id=job_id,
            num_nodes=len(hosts),
            cpus=[host.slots for host in hosts],
            gpus_per_node=len(gpus),
            left_min=None if end_s is None else max(0.0, (end_s - time.time()) / 60),
        )

    # Within a job.

    def decide(self, verdict: Verdict) -> Decision:
        """Answer the run limit, and the loss of a host, by a requeue; never a kill."""
        end: str | None = ""
        if verdict.kind == "agent_lost" and verdict.node == 0:
            # The program that starts the agents outlives the first host's; where it is silent, too,
            # that host is gone.
            file = Path(os.environ.get(FIRST_END_VARIABLE, ""))
            poll(lambda: file.is_file() or None, interval_s=_POLL_S, limit_s=_END_IS_KNOWN_S)
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
            poll(
                lambda: (
                    run.cancel_file.exists()
                    or run.verdict_file.exists()
                    or end.host not in site.ask_hosts()
                    or None
                ),
                interval_s=5 * _POLL_S,
                limit_s=_LOSS_IS_KNOWN_S,
            )
        try:
            done = call_command(["brequeue", own_id()], timeout_s=_TIMEOUT_S)
        except CommandTimeoutError as error:
            self._is_unclear = True
            raise RequeueUnclearError(f"LSF may start it again, or not: {error.message}") from None
        if done.returncode == 0 or self._is_unclear:
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


def _check(cluster: ClusterProfile) -> None:
    for line in filter(_OWN.match, cluster.directives):
        raise ProfileError(
            f"the cluster profile: directives has {line}, which hpcdist sets itself",
            hint="use the keys of the profile and the job, or --nodes, --gpus, --time, --wait",
        )
    if cluster.gpu_request == "gres" or cluster.qos is not None:
        raise ProfileError(
            "the cluster profile: gpu_request is gres, or qos is set: words of Slurm's",
            hint="lsf.gpu says how GPUs are asked for; a service class is a directive: -sla NAME",
        )
    if any(sign in (cluster.constraint or "") for sign in '[]{}"\\'):
        raise ProfileError(
            f"the cluster profile: constraint is {cluster.constraint}, which cannot stand in "
            "select[...]",
            hint="write what stands between the brackets, such as: gpu32gb && model==XeonE5",
        )


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
    unit, per = cluster.lsf.mem_unit, cluster.lsf.mem_per
    nodes, slots = job.resources.nodes, cpus_per_node(job, cluster)
    share, number = {"slot": (1 / slots, nodes * slots), "host": (1, nodes), "job": (nodes, 1)}[per]
    # Without the rounding, the noise of a division would become a unit more.
    amount = math.ceil(round(mem_gb * _PER_GB[unit] * share, 6))
    why = (
        f"Memory of {mem_gb:g} GB per node is {amount} {'MB' if unit == 'suffix' else unit} per "
        f"{per}, {amount / _PER_GB[unit] * number:g} GB in all."
    )
    return f"{amount}MB" if unit == "suffix" else str(amount), why


def _gpu_request(job: JobSpec, cluster: ClusterProfile) -> tuple[str | None, str | None]:
    """Return the value of -gpu, and the term of rusage[...]: one of them, or none."""
    if not asks_for_gpus(job, cluster):
        return None, None
    lsf, model = cluster.lsf, cluster.gpu_type
    template = lsf.gpu_rusage or lsf.gpu
    if model is not None and (lsf.gpu_rusage or lsf.gpu is None or "gmodel=" in lsf.gpu):
        key = "lsf.gpu_rusage" if lsf.gpu_rusage else "lsf.gpu"
        raise ProfileError(
            f"the cluster profile: gpu_type is {model}, for which {key} ({template or 'null'}) "
            "has no place",
            hint="gpu_type becomes gmodel= of -gpu: leave gpu_type out, or lsf.gpu without "
            "gmodel=; hosts are chosen with constraint",
        )
    text = template and template.replace("{gpus}", str(job.resources.gpus))
    if lsf.gpu_rusage:
        return None, text
    return (f"{text}:gmodel={model}" if model else text), None


def _requirement(directives: Iterable[str], own: Mapping[str, str | None]) -> str | None:
    """Return the -R of the profile's directives and hpcdist's own sections as one requirement that
    asks for all: IBM's bsub takes several -R and merges them, others refuse that. What stands in no
    section belongs to select; of a resource in rusage hpcdist's own has the word."""
    sections: defaultdict[str, list[str]] = defaultdict(list)
    resources = re.findall(r"(\w+)=", own["rusage"] or "")
    for directive in (one for one in directives if one.startswith("-R")):
        text = directive.removeprefix("-R").strip().strip("\"'")
        found = _SECTION.findall(text)
        rest = _SECTION.sub(" ", text).strip()
        for name, content in [*found, *([("select", rest)] if rest else [])]:
            is_twice = name in sections and name not in {"select", "rusage"}
            has_choice = name == "rusage" and "||" in content
            if is_twice or has_choice or name not in _ALLOWED or re.search(r"[][{}\"']", content):
                raise ProfileError(
                    f"the cluster profile: directives has {directive}, which does not go together "
                    "with the -R that hpcdist sends",
                    hint='write one plain string: -R "select[...] rusage[...]", with each section '
                    "once, and without span, which --nodes and --gpus say",
                )
            terms = [one for one in content.split(":") if one.partition("=")[0] not in resources]
            sections[name] += [":".join(terms).strip()] if terms else []
    for name, text_or_none in own.items():
        sections[name] += [text_or_none] if text_or_none else []
    # With a colon where possible: old engines know no comma. A duration is about its list.
    signs = dict.fromkeys(sections, ", " if "duration=" in str(sections["rusage"]) else ":")
    if len(sections["select"]) > 1:
        sections["select"] = [f"({one})" for one in sections["select"]]
    signs["select"] = " && "
    parts = (f"{n}[{signs[n].join(sections[n])}]" for n in _SECTIONS if sections[n])
    return " ".join(parts) or None
