"""The site: its partitions, as sinfo tells, its configuration, as scontrol does, the doctor's
questions, and the allocation of a shell. A job that could never start is found before it waits."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping, Sequence

from msgspec import Struct

from hpcdist.base.errors import SchedulerError, UserError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.job.check import parse_minutes
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import CommandFailedError, run_command
from hpcdist.schedulers.base import Allocation, Finding, failed, passed
from hpcdist.schedulers.request import (
    Nodes,
    check_fit,
    check_time_limit,
    cpus_per_node,
    parse_size,
    time_limit_min,
    try_to_ask,
)

MIB_PER_GB = 1e9 / 2**20
_DEFAULT_MAX_ARRAY_SIZE = 1001
"""slurm.schedmd.com/slurm.conf.html, MaxArraySize."""
_SINFO = ("sinfo", "--noheader", "--exact", "--format=%P|%D|%c|%m|%G|%l|%a")
"""Partition, nodes, CPUs, memory in MiB, gres, time limit, availability; one line for all nodes
of a partition that are alike."""
_CONFIG = ("scontrol", "show", "config")
_TIMEOUT_S = 30.0
_GPUS = re.compile(r"(?:^|,)gpu(?::([^:(,]+))?:(\d+)(?=\(|,|$)")
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
            mem_gb=_leading_number(row[3]) / MIB_PER_GB,
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
    return parse_nodes(try_to_ask(*_SINFO))


def check_capacity(job: JobSpec, cluster: ClusterProfile, groups: Sequence[NodeGroup]) -> None:
    """Raise JobError for what the partition can never give; an unknown one is left to sbatch."""
    wanted, kind = cluster.partition, cluster.gpu_type
    theirs = [one for one in groups if (one.is_default and not wanted) or one.partition == wanted]
    if theirs:
        nodes = [
            Nodes(
                one.num_nodes,
                one.cpus,
                one.gpus.get(kind, 0) if kind else sum(one.gpus.values()),
                one.mem_gb or math.inf,
            )
            for one in theirs
        ]
        name = f"partition {theirs[0].partition}"
        check_fit(job, cluster, nodes, where=name, hint=_OTHER)
        check_time_limit(job, cluster, theirs[0].limit_min, queue=name, other=_OTHER)


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
    # The plugin that knows --gpus-per-node.
    select = parse_setting(ask(*_CONFIG), "SelectType")
    return Site(
        scheduler="slurm",
        gpu_request="gpus-per-node" if select == "select/cons_tres" else "gres",
        partitions=tuple(partitions),
        accounts=tuple(dict.fromkeys(accounts.split())),
        notes=tuple(notes),
    )


def parse_sinfo(text: str) -> list[Partition]:
    """Return the partitions that are up, in sinfo's order."""
    found: dict[str, list[NodeGroup]] = {}
    for group in parse_nodes(text):
        if group.is_up and group.num_nodes > 0:
            found.setdefault(group.partition, []).append(group)
    return [_partition(groups) for groups in found.values()]


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


# What scontrol says.


def parse_setting(config: str, name: str) -> str | None:
    """Return the value in a line `Name = value`."""
    found = re.search(rf"^{name}\s*=\s*(\S+)\s*$", config, re.MULTILINE)
    return found[1] if found else None


def ask_max_array_size() -> int:
    """Return MaxArraySize, the number of indices that an array may have: the highest is one less.

    Where scontrol does not answer, it is Slurm's default: then sbatch will tell.
    """
    value = parse_setting(try_to_ask(*_CONFIG), "MaxArraySize") or ""
    return int(value) if value.isdecimal() else _DEFAULT_MAX_ARRAY_SIZE


def ask_cluster() -> str | None:
    """Return the name of the cluster that Slurm's commands talk to; None where it is not known."""
    return parse_setting(try_to_ask(*_CONFIG), "ClusterName")


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


def _flat(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


# The allocation of a shell (salloc), and what a step in it asks for.


def parse_allocation(job_id: str, said: str, environment: Mapping[str, str]) -> Allocation:
    """Read `scontrol --oneliner show job`, and what salloc and srun set for their commands."""
    fields = job_fields(said)
    tres = fields.get("AllocTRES") or fields.get("TRES", "")
    found = dict(pair.split("=", 1) for pair in tres.split(",") if "=" in pair)
    nodes = re.match(r"\d+", fields.get("NumNodes", ""))
    num_nodes = int(nodes[0]) if nodes else 1
    per_node = environment.get("SLURM_JOB_CPUS_PER_NODE", "")  # 4(x2),2
    cpus = [
        int(number)
        for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", per_node)
        for _ in range(int(times or 1))
    ]
    mem_bytes = parse_size(found.get("mem", ""))
    # Not every site accounts for the GPUs that were given; then it is known what was asked for.
    asked, asked_in_all = (_count_gpus(fields.get(f"TresPer{one}", "")) for one in ("Node", "Job"))
    return Allocation(
        job_id=job_id,
        num_nodes=num_nodes,
        cpus=cpus or [int(found.get("cpu", num_nodes)) // num_nodes] * num_nodes,
        gpus_per_node=(
            int(found.get("gres/gpu", 0)) // num_nodes or asked or asked_in_all // num_nodes
        ),
        mem_gb_per_node=None if mem_bytes is None else mem_bytes / 1e9 / num_nodes,
    )


def step_options(job: JobSpec, cluster: ClusterProfile, allocation: Allocation) -> list[str]:
    """Return what srun is told beyond what it is told in a batch job: a step that names no memory
    or GPUs takes all of the allocation's, and no other step can start beside it."""
    options, has_gb = ["--exact"], allocation.mem_gb_per_node
    mem_gb = job.resources.mem_gb
    if mem_gb is None and has_gb is not None:
        # A profile is written for whole jobs: srun would wait for ever for more than there is.
        share = min(cpus_per_node(job, cluster) / min(allocation.cpus), 1.0)
        mem_gb = min(cluster.mem_gb or share * has_gb, has_gb)
    elif mem_gb is None:
        mem_gb = cluster.mem_gb
    if mem_gb is not None:
        mem_mib = round(mem_gb * MIB_PER_GB, 3)
        options.append(f"--mem={math.ceil(mem_mib) if mem_gb != has_gb else int(mem_mib)}M")
    if allocation.gpus_per_node:
        wants = job.launch.device != "cpu"
        options.append(f"--gres=gpu:{job.resources.gpus}" if wants else "--gres=none")
    limit_min = time_limit_min(job, cluster)
    if limit_min is not None:  # a longer one than the allocation's ends with the allocation
        options.append(f"--time={slurm_time(limit_min)}")
    return options


def _count_gpus(words: str) -> int:
    """Count gres:gpu:a100:2,gres:gpu as Slurm 22 says it, or gres/gpu:a100:2,gres/gpu:1 as 24."""
    parts = [re.split("[:/=]", word.removeprefix("gres")) for word in words.split(",")]
    numbers = [one[-1] for one in parts if one[:2] == ["", "gpu"]]
    return sum(int(number) if number.isdecimal() else 1 for number in numbers)
