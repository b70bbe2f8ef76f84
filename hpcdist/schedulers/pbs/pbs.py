"""The PBS scheduler (OpenPBS and PBS Professional): what each question to it becomes in PBS's
commands, and what their answers mean.

The text of `qstat -f` is read: its JSON leaves out all jobs but the first that is named, and breaks
on values of variables (seen with OpenPBS 23.06). A server that hangs is waited for without end, so
every call has a time-out. Of ids such as 30.server, the server is left out here. A sweep is a job
per run, for PBS cannot wait for one job of an array, and takes one as ended well in which some have
failed.

Users may not have PBS start a job again (qrerun), so a run that goes on is submitted anew from
within its job, and what waits for the job is told to wait for the new one. PBS warns nobody of a
time limit: the agents' own clock does. SIGTERM comes from a qdel, a qrerun and a preemption alike:
what could be saved is saved, and PBS alone knows whether the job comes back.
"""

# ruff: noqa: ARG002 - the protocol has the arguments
from __future__ import annotations

import getpass
import math
import os
import re
import shlex
import subprocess
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from hpcdist.base import errors, files
from hpcdist.base.progress import poll
from hpcdist.cluster.channels import mail_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import CommandFailedError, call_command, failure_of, run_command
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.runs.verdict import State, Verdict
from hpcdist.schedulers.base import (
    Allocation,
    Directive,
    Plan,
    Start,
    Target,
    directives_of,
    unusable,
)
from hpcdist.schedulers.batch import Batch, Job
from hpcdist.schedulers.hosts import Host, end_well_file, means_first_host
from hpcdist.schedulers.hosts import Job as HostsOfJob
from hpcdist.schedulers.request import (
    as_limit,
    asks_for_gpus,
    cpus_per_node,
    mem_gb_per_node,
    parse_seconds,
    parse_size,
    parse_time,
    start_by_room,
    time_limit_min,
    try_to_ask,
)
from hpcdist.schedulers.requeue import Decision, RequeueRefusedError, RequeueUnclearError

_TIMEOUT_S = 30.0
_ATTRIBUTE = re.compile(r"^ {4,5}([\w.]+) = (.*)$")
_HAS = ("ncpus", "ngpus", "mem")
_KINDS = ("available", "assigned")
_DOWN = ("down", "offline", "unknown", "stale")
_JOB = "Job Id: "
_JOB_ID = re.compile(r"\d+")
_IS_OVER = re.compile(r"Unknown Job Id|Job has finished|Request invalid for (?:finished|state)")
_LIMIT = "resources.time_limit_min|time_limit_min"

# Its answers.

_STATES: dict[str, State] = {
    **dict.fromkeys("QHWTM", "pending"),
    **dict.fromkeys("RESUB", "running"),
    **dict.fromkeys("FX", "failed"),
}
"""Job states of the man page pbs_job_attributes -> ours; of F and X the exit code says more."""
_PENDING = (
    (r"Can Never Run", "it asks for more than the cluster has: it will never start"),
    (r"Insufficient amount of resource: ngpus", "it waits for GPUs to become free"),
    (r"Insufficient amount of resource: mem", "it waits for nodes with enough free memory"),
    (r"Insufficient amount|[Nn]ot enough", "it waits for nodes to become free"),
    (r"Queue not started", "the queue starts no jobs at present"),
    (r"[Uu]ser has reached", "you have reached your limit"),
    (r"(?:Queue|Server) .*(?:limit|reached)", "the queue has reached its limit of running jobs"),
)
"""Pattern of a job's comment -> why it waits."""
_DROPPED = "what it was to follow did not end as --after requires, so PBS removed it without a word"

# Its requests.

_OF_A_JOB = re.compile(
    r"PBS_\w+|NCPUS|HPCDIST_JOB_\w+|SUBMITIT_\w+|BASH_FUNC_.*|BASHOPTS|SHELLOPTS"
)
"""Variables of a job, or a shell, that the caller may be part of."""
_OF_FIRST_TASK = re.compile(r"PBS_(?!JOBID$|JOBNAME$|QUEUE$|O_\w+$|NODEFILE$)\w+|NCPUS")
_DIRECTIVE = re.compile(r"^#PBS (.*)$", re.MULTILINE)
_CHECKED = (
    'cd -P -- "$1" && [ -O . ] && [ -O script.sh ] && [ ! -L script.sh ] && '
    '[ -z "$(find . script.sh -maxdepth 0 -perm /022)" ] && exec 9<script.sh && cd "$OLDPWD" || '
    '{ echo "error: $1/script.sh is missing, belongs to another user, or can be written by others: '
    'nothing of it was run" >&2; exit 1; }; exec /bin/bash -l /dev/fd/9 "${@:2}"'
)
"""The command that PBS keeps in the script's place; the script's folder follows it. PBS would keep
a script too, but ends the shell that runs one at any signal, and all of the job with it."""


def own_id() -> str:
    """Return the id of the job that this process is part of, without the server."""
    return os.environ["PBS_JOBID"].partition(".")[0]


class Pbs(Batch):
    """Runs as PBS's jobs, or in the job of a shell, as `qsub -I` gives one."""

    name = "pbs"
    title = "PBS"
    version_command = ("qsub", "--version")
    allocation_variable = "PBS_JOBID"
    how_to_allocate = "qsub -I -l select=2:ncpus=N:ngpus=N -l place=scatter"
    template = "pbs.sh"
    warnings = ("SIGTERM",)
    foreign_keys = ("qos", "gpu_type", "exclude")
    kill_wait_s = 10.0
    own_job_id = staticmethod(own_id)

    def directives(self, job: JobSpec, cluster: ClusterProfile, target: Target) -> list[Directive]:
        """Return the options of qsub, in a fixed order."""
        limit_min = time_limit_min(job, cluster)
        walltime = None if limit_min is None else as_limit(limit_min)
        output, mail = f"{target.submitit_folder}/0_report.out", mail_of(cluster.notify)
        waits = ",".join(":".join([one.kind, *one.job_ids]) for one in target.dependencies)
        depend = f"depend={waits}" if waits else None
        own_hosts = "scatter" if job.resources.nodes > 1 else None
        return [
            *directives_of(
                ("-N ", target.name, "The run's id, by which qstat lists it."),
                ("-q ", cluster.partition, "", "partition"),
                ("-A ", cluster.account, "", "account"),
            ),
            _select(job, cluster),
            *directives_of(
                ("-l place=", own_hosts, "Each chunk on a host of its own."),
                ("-l walltime=", walltime, "Time limit.", _LIMIT),
                ("-r ", "y" if job.launch.requeue else "n", "", "launch.requeue"),
                ("-j ", "oe", "PBS keeps the job's output and errors in one file."),
                ("-o ", output, "PBS's own copy of the output, when the job has ended."),
                ("-W ", depend, "Jobs that must have ended: --after, or --max-parallel."),
                ("-m ", None if mail is None else "ae", "", "notify"),
                ("-M ", mail or None, "", "notify"),
            ),
        ]

    def submit_command(self, target: Target, script: str) -> list[str]:
        """Return qsub with the script's directives as its options; a job that goes on as another
        waits for nothing."""
        lines = [
            line
            for line in _DIRECTIVE.findall(script)
            if not (target.continues and line.startswith("-W depend"))
        ]
        options = [word for line in lines for word in shlex.split(line)]
        command = ["/bin/bash", "-c", _CHECKED, "hpcdist", str(target.folder)]
        # Without -f it leaves a process for a minute, which sends what later calls submit.
        return ["qsub", "-f", *options, "--", *command]

    def parse_submitted(self, text: str) -> str | None:
        found = re.fullmatch(r"(\d+)(?:\.\S+)?\s*", text)
        return found[1] if found else None

    def environment(self, before: Mapping[str, str], target: Target, script: str) -> dict[str, str]:
        """Write the caller's environment into a file for this user's eyes alone, which the script
        reads: PBS would show everybody (qstat -f) what it is given. Other jobs' and the host's own
        variables are left out. A job that goes on as another has the file already."""
        if not target.continues:
            names = [name for name in sorted(before) if name.isascii() and name.isidentifier()]
            lines = [
                f"export {name}={shlex.quote(before[name])}"
                for name in names
                if not (_OF_A_JOB.fullmatch(name) or means_first_host(name))
            ]
            umask = os.umask(0o077)
            os.umask(umask)
            text = "\n".join([f"umask {umask:04o}", *lines, ""])
            files.write_whole(target.submitit_folder / "environment.sh", text)
        return dict(before)

    def foresee(self, job: JobSpec, plan: Plan, target: Target, timeout_s: float) -> Start:
        """Look for free nodes: PBS says when a job starts of those alone that it has."""
        said = run_command(["pbsnodes", "-av"], timeout_s=timeout_s).stdout
        gpus = job.resources.gpus if asks_for_gpus(job, plan.cluster) else 0
        mem = int((mem_gb_per_node(job, plan.cluster) or 0) * 1e9)
        asked = dict(zip(_HAS, (cpus_per_node(job, plan.cluster), gpus, mem), strict=True))

        def has_room(node: Mapping[str, str]) -> bool:
            sizes = {
                what: [parse_size(node[f"resources_{kind}.{what}"]) or 0 for kind in _KINDS]
                for what in asked
            }
            return all(has - used >= asked[what] for what, (has, used) in sizes.items())

        nodes = parse_blocks(said, "").values()
        up = [one for one in nodes if not any(word in one["state"] for word in _DOWN)]
        return start_by_room(sum(map(has_room, up)), job)

    def list_hosts(self, cluster: ClusterProfile) -> list[str]:
        said = run_command(["pbsnodes", "-av"], timeout_s=_TIMEOUT_S).stdout
        return [one["Mom"] or name for name, one in parse_blocks(said, "").items()]

    def list_jobs(self, ids: Collection[str]) -> list[Job]:
        """Ask qstat; jobs that ended lately are among them where the site keeps them."""
        wanted = set(filter(_JOB_ID.fullmatch, ids))
        if not ids:
            said = _ask_with_history("qselect", ["-u", getpass.getuser()])
            wanted = {line.partition(".")[0] for line in said.split()}
        return parse_jobs(_ask_with_history("qstat", ["-f", *sorted(wanted)])) if wanted else []

    def kill(self, ids: Collection[str]) -> None:
        if known := sorted(filter(_JOB_ID.fullmatch, set(ids))):
            _check(call_command(["qdel", *known], timeout_s=_TIMEOUT_S))

    def allocation(self, job_id: str, environment: Mapping[str, str]) -> Allocation:
        try:
            values = _ask(job_id)
            hosts = read_nodefile(Path(environment.get("PBS_NODEFILE", "")))
            why = None if values["job_state"] == "R" else f"its state is {values['job_state']}"
        except (CommandFailedError, OSError) as error:
            why = error.said if isinstance(error, CommandFailedError) else files.reason(error)
        if why is not None:
            raise unusable(self, job_id, why)
        begin_s = parse_time(values["stime"]) or 0.0
        limit_s = parse_seconds(values["Resource_List.walltime"])
        left_s = None if limit_s is None else max(0.0, begin_s + limit_s - time.time())
        return Allocation(
            job_id=job_id.partition(".")[0],
            num_nodes=len(hosts),
            left_min=None if left_s is None else left_s / 60,
        )

    # Within a job.

    def job_on_hosts(self) -> HostsOfJob:
        slots = int(os.environ.get("NCPUS") or 1)
        hosts = [Host(name, slots) for name in read_nodefile(Path(os.environ["PBS_NODEFILE"]))]
        return HostsOfJob(hosts, _OF_FIRST_TASK, is_bare=True)

    def decide(self, verdict: Verdict) -> Decision:
        """Answer the time limit, and the loss of a host, by a new job; never a kill."""
        if verdict.try_elsewhere:  # PBS would give the new job the same hosts
            return Decision(sequel="final", cause="nothing")

        def look() -> bool | None:
            jobs = self.list_jobs([own_id()])
            return None if any(job.id == own_id() and job.word == "R" for job in jobs) else True

        # A kill may end any host's agent first, which PBS notices within 6 s; and a job whose first
        # host is gone is PBS's to start again: what it starts leaves the run to the new job.
        is_ending = verdict.kind == "agent_lost" and poll(look, interval_s=1.0, limit_s=6.0)
        if verdict.kind == "preempted" or is_ending:
            return Decision(sequel="open", cause="kill or requeue")
        is_limit = verdict.kind == "time_limit"
        return Decision(sequel="requeue", cause="time_limit" if is_limit else "nothing")

    def requeue(self, run: Run) -> None:
        """Submit the same run as another job, by the same script."""
        from hpcdist.schedulers.submitting import submit_anew  # which takes 0.1 s

        try:
            job_id = submit_anew(self, run)
        except errors.SubmissionUnclearError as error:  # one more request could be the run twice
            raise RequeueUnclearError(f"PBS may have it again, or not: {error.message}") from None
        except CommandFailedError as error:
            raise RequeueRefusedError(error.message) from None
        # PBS removes what waited for this job to end well, if it does not, whatever it waits for.
        if "beforeok" in _tell_waiting(job_id):
            folder = Path(str((run.read_submission() or Submission()).folder), "submitit")
            end_well_file(folder, own_id()).touch()

    # The site, and whether it is fit.

    def answers(self) -> bool:
        """Return whether PBS is here: TORQUE and Grid Engine have a qsub, too."""
        return "pbs_version" in try_to_ask(*self.version_command)

    def detect_site(self) -> Site:
        return detect_pbs()


scheduler = Pbs()


def read_nodefile(path: Path) -> list[str]:
    """Return the hosts of PBS_NODEFILE in their order, each once: it has one line per mpiprocs."""
    return list(dict.fromkeys(path.read_text().split()))


def _select(job: JobSpec, cluster: ClusterProfile) -> Directive:
    """Return what each node of a job has: one chunk of PBS's."""
    resources, cpus = job.resources, cpus_per_node(job, cluster)
    parts = [str(resources.nodes), f"ncpus={cpus}"]
    keys = ["resources.nodes", "resources.gpus", "resources.cpus_per_gpu|cpus_per_gpu"]
    why = (
        f"One chunk per node: {resources.gpus} GPUs per node x {cpus // resources.gpus} CPUs per "
        f"GPU, {resources.nodes * cpus} CPUs in all"
    )
    if (mem_gb := mem_gb_per_node(job, cluster)) is not None:
        parts.append(f"mem={math.ceil(mem_gb * 1e9 / 2**20)}mb")
        why += f"; {mem_gb:g} GB, for PBS's mb is 2**20 bytes"
        keys.append("resources.mem_gb|mem_gb")
    if asks_for_gpus(job, cluster):
        parts.append(f"ngpus={resources.gpus}")
    if cluster.constraint is not None:
        parts.append(cluster.constraint)
        keys.append("constraint")
    return Directive("-l select=", shlex.quote(":".join(parts)), f"{why}.", keys)


def _tell_waiting(job_id: str) -> set[str]:
    """Have the jobs that wait for this one wait for the new one; return how they wait, such as
    beforeok."""
    kinds = set()
    try:
        for term in _ask(own_id())["depend"].split(","):
            kind, *others = term.split(":")
            for other in (one.partition("@")[0] for one in others if kind.startswith("before")):
                kinds.add(kind)
                if depend := with_successor(_ask(other)["depend"], own_id(), job_id):
                    argv = ["qalter", "-W", f"depend={depend}", other]
                    run_command(argv, timeout_s=_TIMEOUT_S)
    except errors.SchedulerError as error:
        print(f"hpcdist: jobs that wait for this one see its end: {error.message}", flush=True)
    return kinds


def with_successor(depend: str, own: str, new: str) -> str:
    """Return what a job waits for, afterok:12.login@login, with the new job in this one's place."""
    bare = re.sub(r"(:[^.:,]+)\.[^:,]+", r"\1", depend)
    return re.sub(rf":{own}(?=[:,]|$)", f":{new}", bare)


# Reading.


def parse_blocks(text: str, head: str) -> dict[str, dict[str, str]]:
    """Return the attributes by name of all objects in the text of -f or -av, whose first lines are
    `head` and a name: lines are folded, and go on after a tab. What stands first counts: the value
    of a variable may hold lines of its own. A missing attribute is empty."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if start := re.match(f"{head}(\\S+)$", line):
            current = found.setdefault(start[1], defaultdict(str))
        elif line.startswith("\t") and last in current:
            current[last] += line.strip("\t\n")
        elif attribute := _ATTRIBUTE.match(line):
            last = attribute[1]
            current.setdefault(last, attribute[2])
    return found


def _ask(job_id: str) -> Mapping[str, str]:
    """Return the attributes of a job, as qstat has them."""
    said = run_command(["qstat", "-f", job_id], timeout_s=_TIMEOUT_S).stdout
    return next(iter(parse_blocks(said, _JOB).values()), defaultdict(str))


def _ask_with_history(command: str, words: Sequence[str]) -> str:
    """Ask for jobs that have ended, too, where the site keeps them."""
    done = call_command([command, "-x", *words], timeout_s=_TIMEOUT_S)
    if "not configured to maintain job history" in done.stderr:
        done = call_command([command, *words], timeout_s=_TIMEOUT_S)
    _check(done)
    return done.stdout


def _check(done: subprocess.CompletedProcess[str]) -> None:
    """Raise SchedulerError for an error, unless it is only about jobs that have ended."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode != 0 and not (lines and all(map(_IS_OVER.search, lines))):
        raise failure_of(done)


def parse_jobs(text: str) -> list[Job]:
    """Return the jobs of `qstat -f`."""
    jobs = []
    for full_id, values in parse_blocks(text, _JOB).items():
        job_id, word = full_id.partition(".")[0], values["job_state"]
        # Of a job that has not ended, it is a former start's.
        status = values["Exit_status"] if word in "FX" else ""
        code = int(status) if re.fullmatch(r"-?\d+", status) else None
        state, reason = _explain(job_id, word, code, values)
        memory = parse_size(values["resources_used.mem"])
        nodes = list(dict.fromkeys(re.findall(r"(?:^|\+)\(?([^/:+()]+)", values["exec_host"])))
        etime, stime = parse_time(values["etime"]), parse_time(values["stime"])
        jobs.append(
            Job(
                id=job_id,
                name=values["Job_Name"],
                state=state,
                word=word,
                reason=reason,
                is_suspended=word in "SU",
                exit_code=code,
                nodes=nodes,
                queue_wait_s=max(0.0, stime - etime) if stime and etime else None,
                elapsed_s=parse_seconds(values["resources_used.walltime"]),
                # It is the sum over all hosts, and nothing before PBS's first look.
                max_rss_bytes=memory if memory and len(nodes) == 1 else None,
            )
        )
    return jobs


def _explain(
    job_id: str, word: str, code: int | None, values: Mapping[str, str]
) -> tuple[State, str | None]:
    """Return the state of a job, and why it is so."""
    state, comment = _STATES.get(word, "running"), values["comment"]
    said = f"PBS says: {comment}" if comment else ""
    was_deleted, reason = values["substate"] == "91", None
    if state == "pending":
        held = values["Hold_Types"] if word == "H" else ""
        reason = "its start time has not come" if word == "W" else plain_reason(comment)
        reason = "it waits for the end of another job" if "s" in held else reason
        reason = f"it is held; release it with: qrls {job_id}" if "u" in held else reason
    elif state == "running":
        reason = "PBS has suspended it: other jobs need its nodes" if word in "SU" else None
    elif code is None and not values["stime"]:
        words = "it was deleted before it had started" if was_deleted else _DROPPED
        state, reason = "cancelled", said or words
    elif was_deleted:  # whatever its exit code is
        state, reason = "cancelled", f"it was ended with qdel ({said})"
    elif code == 0:
        state, reason = "done", said or "PBS says exit code 0"
    else:
        words = "without an exit code" if code is None else f"exit code {code}"
        reason = f"{words} ({said})" if said else words
    return state, reason


def plain_reason(comment: str) -> str:
    """Return a sentence for the comment of a job that waits, with PBS's own words."""
    for pattern, words in _PENDING:
        if re.search(pattern, comment):
            return f"{words} ({comment})"
    return f"PBS says: {comment}" if comment else "the scheduler has not looked at it yet"


# The site, for a first hpcdist.yaml.


def detect_pbs() -> Site:
    """Ask PBS what it offers; raises SchedulerError where it does not answer."""
    servers = parse_blocks(try_to_ask("qstat", "-Bf"), "Server: ").values()
    default = next(iter(servers), defaultdict(str))["default_queue"]
    nodes = [
        {what: parse_size(values[f"resources_available.{what}"]) or 0 for what in _HAS}
        for values in parse_blocks(ask("pbsnodes", "-av"), "").values()
        if not any(word in values["state"] for word in _DOWN)
    ]
    nodes = [node for node in nodes if node["ngpus"]] or nodes
    cpus, gpus, mem = (min((node[what] for node in nodes), default=0) for what in _HAS)
    partitions = [
        Partition(
            name=name,
            is_default=name == default,
            num_nodes=len(nodes),
            cpus=cpus,
            mem_gb=mem / 1e9 or None,
            gpus=gpus,
            time_limit_min=seconds / 60 if seconds else None,
        )
        for name, queue in parse_blocks(ask("qstat", "-Qf"), "Queue: ").items()
        if "False" not in (queue["enabled"], queue["started"])
        for seconds in [parse_seconds(queue["resources_max.walltime"])]
    ]
    return Site(
        scheduler="pbs",
        partitions=tuple(partitions),
        partitions_share_nodes=True,
    )
