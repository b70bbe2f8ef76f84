"""The site: its partitions, as sinfo tells, and its configuration, as scontrol does.

A job that could never start is found before it waits.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import Struct

from hpcdist.base.errors import JobError, SchedulerError, UserError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.job.check import parse_minutes
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import CommandFailedError, run_command
from hpcdist.schedulers.base import Finding, failed, look_for_commands, passed, warned
from hpcdist.schedulers.request import (
    asks_for_gpus,
    check_cpus,
    check_time_limit,
    cpus_per_node,
)

_DEFAULT_MAX_ARRAY_SIZE = 1001
"""slurm.schedmd.com/slurm.conf.html, MaxArraySize."""

_SINFO = ("sinfo", "--noheader", "--exact", "--format=%P|%D|%c|%m|%G|%l|%a")
"""Partition, nodes, CPUs, memory in MiB, gres, time limit, availability; one line for all nodes
of a partition that are alike."""
_SINFO_TIMEOUT_S = 5.0
_CONFIG_TIMEOUT_S = 10.0
_GPUS = re.compile(r"(?:^|,)gpu(?::([^:(,]+))?:(\d+)(?=\(|,|$)")
_GB_PER_MIB = 2**20 / 1e9
MIB_PER_GB = 1e9 / 2**20
_OLDEST = (20, 11)
_TIMEOUT_S = 30.0
_OTHER = "name another partition with --partition"


class NodeGroup(Struct, frozen=True, kw_only=True):
    """Nodes of one partition that are alike: a line of sinfo."""

    partition: str
    is_default: bool
    is_up: bool
    num_nodes: int
    cpus: int
    """Per node."""
    mem_gb: float
    """Per node."""
    gpus: dict[str, int]
    """GPUs per node by type; an empty name where the site gives none."""
    limit_min: float | None
    """Longest time limit in minutes; None: there is none."""


def parse_nodes(text: str) -> list[NodeGroup]:
    """Return the lines of sinfo in the form that is asked for."""
    rows = (line.split("|") for line in text.splitlines())
    return [
        NodeGroup(
            partition=row[0].removesuffix("*"),
            is_default=row[0].endswith("*"),
            is_up=row[6] == "up",
            num_nodes=int(row[1]),
            cpus=_leading_number(row[2]),
            mem_gb=_leading_number(row[3]) * _GB_PER_MIB,
            gpus=parse_gpus(row[4]),
            limit_min=_limit_min(row[5]),
        )
        for row in rows
        if len(row) == 7 and row[1].isdecimal()
    ]


def _leading_number(text: str) -> int:
    """Return 64, or the 64 of 64+, which says that some nodes have more."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def parse_gpus(gres: str) -> dict[str, int]:
    """GPUs by type in sinfo's words: gpu:a100:4(S:0-1),gpu:2, or (null)."""
    found: dict[str, int] = {}
    for kind, number in _GPUS.findall(gres):
        found[kind] = found.get(kind, 0) + int(number)
    return found


def _limit_min(text: str) -> float | None:
    """Return a limit in sinfo's words in minutes; None: infinite, or not to be understood."""
    try:
        return parse_minutes(text, origin="sinfo")
    except UserError:
        return None


# Whether a job can ever run.


def ask_nodes() -> list[NodeGroup]:
    """Ask for the partitions' nodes; none where sinfo does not answer: then sbatch will tell."""
    if shutil.which("sinfo") is None:
        return []
    try:
        return parse_nodes(run_command(_SINFO, timeout_s=_SINFO_TIMEOUT_S).stdout)
    except SchedulerError:
        return []


def check_capacity(job: JobSpec, cluster: ClusterProfile, groups: Sequence[NodeGroup]) -> None:
    """Raise JobError for what the partition can never give; an unknown one is left to sbatch."""
    theirs = [
        group
        for group in groups
        if (group.is_default if cluster.partition is None else group.partition == cluster.partition)
    ]
    if not theirs:
        return
    name = theirs[0].partition
    nodes, number = job.resources.nodes, sum(group.num_nodes for group in theirs)
    if nodes > number:
        raise JobError(
            f"resources.nodes is {nodes}, but partition {name} has {number}",
            hint=f"ask for fewer with --nodes, or {_OTHER}",
        )
    check_cpus(
        job,
        cpus_per_node(job, cluster),
        max(group.cpus for group in theirs),
        nodes=f"the nodes of partition {name}",
        what="CPUs",
        other=f", or {_OTHER}",
    )
    if asks_for_gpus(job, cluster):
        _check_gpus(job, cluster, name, theirs)
    check_time_limit(job, cluster, theirs[0].limit_min, queue=f"partition {name}", other=_OTHER)


def _check_gpus(
    job: JobSpec, cluster: ClusterProfile, name: str, groups: Sequence[NodeGroup]
) -> None:
    nodes, gpus, wanted = job.resources.nodes, job.resources.gpus, cluster.gpu_type
    counts = [
        (group.gpus.get(wanted, 0) if wanted else sum(group.gpus.values()), group.num_nodes)
        for group in groups
    ]
    fitting = sum(number for found, number in counts if found >= gpus)
    if fitting >= nodes:
        return
    most = max(found for found, _ in counts)
    kind = f"{wanted} GPUs" if wanted else "GPUs"
    if most == 0:
        raise JobError(
            f"resources.gpus is {gpus}, but the nodes of partition {name} have no {kind}",
            hint=f"{_OTHER}, or run on CPUs: --set launch.device=cpu",
        )
    raise JobError(
        f"resources.gpus is {gpus} on {nodes} nodes, but partition {name} has {fitting} nodes "
        f"with {gpus} {kind} or more; the most is {most} per node",
        hint=f"ask for fewer with --gpus and --nodes, or {_OTHER}",
    )


# A first hpcdist.yaml.


def detect_slurm(user: str) -> Site:
    """Ask Slurm what it offers; raises SchedulerError where it does not answer."""
    partitions = parse_sinfo(ask(*_SINFO))
    accounts, notes = "", []
    command = ("sacctmgr", "--noheader", "--parsable2", "show", "assoc")
    try:
        accounts = ask(*command, f"user={user}", "format=account")
    except SchedulerError as error:  # many sites have none
        notes = [f"your accounts are not known: {error.message}"]
    knows_gpus_per_node = has_gpus_per_node(ask("scontrol", "show", "config"))
    return Site(
        scheduler="slurm",
        gpu_request="gpus-per-node" if knows_gpus_per_node else "gres",
        partitions=tuple(partitions),
        accounts=parse_accounts(accounts),
        notes=tuple(notes),
    )


def parse_sinfo(text: str) -> list[Partition]:
    """Return the partitions that are up, in sinfo's order."""
    nodes = [group for group in parse_nodes(text) if group.is_up and group.num_nodes > 0]
    names = list(dict.fromkeys(group.partition for group in nodes))
    nodes.sort(key=lambda group: names.index(group.partition))
    return [_partition(list(found)) for _, found in groupby(nodes, lambda group: group.partition)]


def parse_accounts(text: str) -> tuple[str, ...]:
    """Return the accounts of `sacctmgr --parsable2 show assoc format=account`, each once."""
    return tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))


def has_gpus_per_node(config: str) -> bool:
    """Return whether `scontrol show config` tells of the plugin that knows --gpus-per-node."""
    return _setting(config, "SelectType") == "select/cons_tres"


def _partition(nodes: Sequence[NodeGroup]) -> Partition:
    with_gpus = [found for found in nodes if found.gpus]
    counted = with_gpus or nodes
    types = list(dict.fromkeys(kind for found in with_gpus for kind in found.gpus))
    return Partition(
        name=nodes[0].partition,
        is_default=nodes[0].is_default,
        num_nodes=sum(found.num_nodes for found in counted),
        cpus=min(found.cpus for found in counted),
        mem_gb=min(found.mem_gb for found in counted),
        gpus=min((sum(found.gpus.values()) for found in with_gpus), default=0),
        # None where some GPUs have none: a request with a type would leave them out.
        gpu_types=() if "" in types else tuple(types),
        time_limit_min=nodes[0].limit_min,
    )


# The configuration.


def _ask_config() -> str:
    """Return the lines `Name = value`; nothing where scontrol does not answer."""
    try:
        return run_command(["scontrol", "show", "config"], timeout_s=_CONFIG_TIMEOUT_S).stdout
    except SchedulerError:
        return ""


def _setting(config: str, name: str) -> str | None:
    found = re.search(rf"^{name}\s*=\s*(\S+)\s*$", config, re.MULTILINE)
    return found[1] if found else None


def ask_max_array_size() -> int:
    """Return MaxArraySize, the number of indices that an array may have: the highest is one less.

    Where scontrol does not answer, it is Slurm's default: then sbatch will tell.
    """
    value = _setting(_ask_config(), "MaxArraySize") or ""
    return int(value) if value.isdecimal() else _DEFAULT_MAX_ARRAY_SIZE


def parse_cluster(config: str) -> str | None:
    return _setting(config, "ClusterName")


def ask_cluster() -> str | None:
    """Return the name of the cluster that Slurm's commands talk to; None where it is not known."""
    return parse_cluster(_ask_config())


# Jobs, in scontrol's words.


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


# The doctor's questions.


def examine() -> Iterator[Finding]:
    """Check the commands, their version, the controller and accounting, as far as they work."""
    load = "go to a login node of the cluster, or load the site's Slurm module"
    needed = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
    commands = look_for_commands(needed, advice=load)
    yield commands
    if commands.state == "FAIL":
        return
    version = _asked("version", ["sbatch", "--version"], advice=load)
    number = re.search(r"(\d+)\.(\d+)", version.detail)
    if version.state == "pass" and number and (int(number[1]), int(number[2])) < _OLDEST:
        said = f"{version.detail}, and hpcdist needs 20.11 or newer"
        version = failed("version", said, "ask the site for a newer one")
    yield version
    controller = _asked(
        "controller",
        ["squeue", "--noheader", "--me"],
        ["scontrol", "ping"],
        advice="Slurm's controller is down or cannot be reached from here; see `scontrol ping`, "
        "and tell the site if it lasts",
    )
    yield controller
    if controller.state == "pass":
        asked = ["sacct", "--noheader", "--allocations", "--format=JobID", "--starttime=now"]
        books = _asked("accounting", asked, advice="")
        advice = (
            "nothing to do: for jobs that Slurm has forgotten, the run directory says how "
            "they ended"
        )
        answers = books.state == "pass"
        yield (
            passed("accounting", "sacct answers")
            if answers
            else warned("accounting", books.detail, advice)
        )


def try_script(script: str, environment: Mapping[str, str]) -> Finding:
    """Ask sbatch --test-only about a script."""
    with tempfile.NamedTemporaryFile("w", prefix="hpcdist-", suffix=".sh") as file:
        file.write(script)
        file.flush()
        argv = ["sbatch", "--test-only", file.name]
        try:
            done = run_command(argv, timeout_s=_TIMEOUT_S, environment=environment)
        except CommandFailedError as error:
            return failed(
                "directives",
                f"sbatch --test-only says: {_flat(error.said)}",
                "change the cluster profile, or the options; `hpcdist render check` shows what is "
                "asked for",
            )
        except SchedulerError as error:
            return failed("directives", error.message, error.hint)
    return passed("directives", _flat(done.stderr or done.stdout) or "sbatch accepts them")


def _asked(name: str, *commands: Sequence[str], advice: str) -> Finding:
    """Return the finding on commands that must succeed, with what the last of them says."""
    said = ""
    try:
        for argv in commands:
            said = run_command(argv, timeout_s=_TIMEOUT_S).stdout
    except SchedulerError as error:
        return failed(name, _flat(error.message), advice)
    return passed(name, _flat(said))


def _flat(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
