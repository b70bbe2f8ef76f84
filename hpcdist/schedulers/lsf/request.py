"""The request of a job to LSF: slots, GPUs, memory and the -R string as values, the #BSUB lines,
and the batch script with one command on every host. Pure.

bsub's options are described at www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-bsub. bsub
reads #BSUB lines by itself, no shell does: a value with blanks, brackets or the like stands in
double quotes, and there is no way to put a double quote into it. An LSF may misread an option that
it does not know by its first letters, silently: none is sent that lsf.options does not list.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping

import msgspec

from hpcdist.base.errors import ProfileError, RunDirectoryError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.requirement import (
    fill,
    merge_requirements,
    parse_requirement,
    requirement_of,
    rusage_value,
    write_requirement,
)
from hpcdist.cluster.rules import check_rules
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.base import Dependency, Target
from hpcdist.schedulers.resources import (
    asks_for_gpus,
    counted,
    cpus_per_node,
    limit_line,
    mem_gb_per_node,
    no_gpus_line,
    no_memory_line,
    product,
    ranks_and_cpus,
    source,
    time_limit_min,
)
from hpcdist.schedulers.script import comment, render

_PER_GB = {"suffix": 1e3, "KB": 1e6, "MB": 1e3, "GB": 1.0}
"""Unit of rusage[mem=...] -> how many are a GB of hpcdist (10**9 bytes).

LSF's own MB may be 2**20 bytes: the job then has up to 5 % more than it asked for (7 % where the
unit is GB), and never less.
"""
_PATTERN_SIGNS = ("%", "\\", "\n", '"')
_PLAIN = re.compile(r"[\w./:-]+")
_ELEMENT = re.compile(r"(\d+)_(\d+)")
_CONDITIONS = {"afterok": "done", "afterany": "ended", "afternotok": "exit"}

_USES = {
    "-J": ("by which the job is found", ""),
    "-q": ("for the queue", "leave partition out"),
    "-P": ("for the project", "leave account out"),
    "-n": ("for the slots", ""),
    "-R": (
        "for the hosts, the memory or the GPUs",
        "leave mem_gb, constraint and lsf.gpu_rusage out, and ask for one node with one CPU",
    ),
    "-gpu": ("for the GPUs", "set gpu_request: none, or lsf.gpu_rusage"),
    "-W": ("for the time limit", "leave --time and time_limit_min out"),
    "-o": ("for the output", ""),
    "-w": ("for the jobs to wait for", "leave --after, --summary-after and --max-parallel out"),
}
"""Option that is needed -> what for, and how to do without."""
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_UNITS = {"KB": "KB", "MB": "MB", "GB": "GB", "suffix": "MB"}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a request."""

    nodes: int
    slots_per_node: int
    gpu: str | None
    """Value of -gpu."""
    requirement: str
    """Value of -R; empty: nothing is required."""
    own_sections: list[str]
    """The sections of it that hold something of hpcdist's own, not of the profile's directives."""
    mem: str | None
    """Memory per slot, host or job, as LSF reads it."""
    limit: str | None
    """Value of -W."""

    @property
    def slots(self) -> int:
        """Return the slots over all hosts."""
        return self.nodes * self.slots_per_node


def request_of(job: JobSpec, cluster: ClusterProfile) -> Request:
    """Return what `job` asks for on `cluster`; ProfileError for what LSF cannot be asked."""
    _check(cluster)
    own = _requirement(job, cluster)
    merged = merge_requirements([*_from_directives(cluster), own])
    limit_min = time_limit_min(job, cluster)
    return Request(
        nodes=job.resources.nodes,
        slots_per_node=cpus_per_node(job, cluster),
        gpu=_gpu(job, cluster),
        requirement=write_requirement(merged),
        own_sections=list(own),
        mem=rusage_value(merged.get("rusage", ""), "mem"),
        limit=None if limit_min is None else lsf_time(limit_min),
    )


def lsf_time(minutes: float) -> str:
    """Return a duration as bsub -W reads it: HH:MM, rounded up, and never with seconds."""
    hours, rest = divmod(math.ceil(minutes), 60)
    return f"{hours:02d}:{rest:02d}"


def mem_text(job: JobSpec, cluster: ClusterProfile) -> str | None:
    """Return the memory for one slot, host or job, as the site means it, rounded up."""
    mem_gb = mem_gb_per_node(job, cluster)
    if mem_gb is None:
        return None
    unit = cluster.lsf.mem_unit
    share = {"slot": 1 / cpus_per_node(job, cluster), "host": 1, "job": job.resources.nodes}
    # Without the rounding, the noise of a division would become a unit more.
    number = math.ceil(round(mem_gb * _PER_GB[unit] * share[cluster.lsf.mem_per], 6))
    return f"{number}MB" if unit == "suffix" else str(number)


def further_directives(cluster: ClusterProfile) -> list[str]:
    """Return the profile's directives without their -R, which is merged with hpcdist's own."""
    return [line for line in cluster.directives if requirement_of(line) is None]


def _check(cluster: ClusterProfile) -> None:
    """Check a profile once more: one for `auto` was checked as Slurm's."""
    values = {"scheduler": "lsf", "directives": cluster.directives}
    check_rules(values, lambda _: "the cluster profile")
    if cluster.gpu_request == "gres":
        raise ProfileError(
            "the cluster profile: gpu_request is gres, which is a word of Slurm's",
            hint="for LSF leave it out, or set it to none; lsf.gpu says how GPUs are asked for",
        )
    if cluster.qos is not None:
        raise ProfileError(
            f"the cluster profile: qos is {cluster.qos}, and LSF has none",
            hint="leave qos out; a service class of LSF is a directive: -sla NAME",
        )


def _requirement(job: JobSpec, cluster: ClusterProfile) -> dict[str, str]:
    """Return the sections of our own."""
    found: dict[str, str] = {}
    if cluster.constraint is not None:
        found["select"] = _selected(cluster.constraint)
    slots = cpus_per_node(job, cluster)
    if job.resources.nodes > 1:
        found["span"] = f"ptile={slots}"
    elif slots > 1:
        found["span"] = "hosts=1"
    mem, gpus = mem_text(job, cluster), _gpu_rusage(job, cluster)
    terms = [f"mem={mem}" if mem else None, gpus]
    if usages := [term for term in terms if term]:
        found["rusage"] = ":".join(usages)
    return found


def _selected(constraint: str) -> str:
    if any(sign in constraint for sign in '[]{}"\\'):
        raise ProfileError(
            f"the cluster profile: constraint is {constraint}, which cannot stand in select[...]",
            hint="write what stands between the brackets, such as: gpu32gb && model==XeonE5",
        )
    return constraint


def _from_directives(cluster: ClusterProfile) -> list[dict[str, str]]:
    texts = (requirement_of(line) for line in cluster.directives)
    return [parse_requirement(text) for text in texts if text is not None]


def _gpu(job: JobSpec, cluster: ClusterProfile) -> str | None:
    template = cluster.lsf.gpu
    if not asks_for_gpus(job, cluster):
        return None
    if cluster.lsf.gpu_rusage is not None or template is None:
        if cluster.gpu_type is not None:
            raise _untyped(cluster)
        return None
    text = fill(template, gpus=job.resources.gpus)
    if cluster.gpu_type is None:
        return text
    if "gmodel=" in text:
        raise _untyped(cluster)
    return f"{text}:gmodel={cluster.gpu_type}"


def _untyped(cluster: ClusterProfile) -> ProfileError:
    if cluster.lsf.gpu_rusage is not None:
        where = f"lsf.gpu_rusage ({cluster.lsf.gpu_rusage})"
    else:
        where = f"lsf.gpu ({cluster.lsf.gpu or 'null'})"
    return ProfileError(
        f"the cluster profile: gpu_type is {cluster.gpu_type}, for which {where} has no place",
        hint="gpu_type becomes gmodel= of -gpu: leave gpu_type out, or lsf.gpu without gmodel=; "
        "hosts are chosen with constraint",
    )


def _gpu_rusage(job: JobSpec, cluster: ClusterProfile) -> str | None:
    template = cluster.lsf.gpu_rusage
    if template is None or not asks_for_gpus(job, cluster):
        return None
    return fill(template, gpus=job.resources.gpus)


# The #BSUB lines.


class Option(msgspec.Struct, frozen=True):
    """One option of bsub."""

    name: str
    value: str | None = None
    is_needed: bool = True
    """The job cannot do without; else it is left out where the profile does not list it."""


def directives(job: JobSpec, cluster: ClusterProfile, target: Target) -> list[str]:
    """Return the options of bsub, in a fixed order, each ready to stand behind #BSUB.

    Raises ProfileError where one that is needed is not allowed, or LSF cannot be asked for it.
    """
    request = request_of(job, cluster)
    options = [
        Option("-J", _name(target)),
        *_placement(cluster),
        *_resources(request),
        *_end(job, request),
        Option("-o", log_pattern(target)),
        *_dependencies(target.dependencies),
    ]
    sent = [option for option in options if _is_sent(option, cluster, request)]
    return [*_lines(sent), *further_directives(cluster)]


def log_pattern(target: Target) -> str:
    """Return the file for the script's output; %J and %I are the job's id and index."""
    job = "%J" if target.array_size is None else "%J_%I"
    return f"{target.submitit_folder}/{job}_lsf.out"


def check_folder(target: Target) -> None:
    """Raise RunDirectoryError for a path that LSF would not take as it is."""
    found = next((sign for sign in _PATTERN_SIGNS if sign in str(target.folder)), None)
    if found is not None:
        raise RunDirectoryError(
            f"{target.folder}: the path holds {found!r}, which LSF takes for a pattern, or for the "
            "end of the path",
            hint="name another folder with --runs or HPCDIST_RUNS",
        )


def _is_sent(option: Option, cluster: ClusterProfile, request: Request) -> bool:
    if option.name in cluster.lsf.options:
        return True
    if option.name == "-R" and not request.own_sections:
        return True  # all of it stands in the profile's directives
    if not option.is_needed:
        return False
    purpose, without = _USES[option.name]
    raise ProfileError(
        f"the cluster profile: lsf.options does not list {option.name}, which hpcdist needs "
        f"{purpose}: {_line(option)}",
        hint=f"add {option.name} to lsf.options" + (f", or {without}" if without else ""),
    )


def _lines(options: list[Option]) -> list[str]:
    lines: list[str] = []
    for option in options:
        if option.name == "-ti":  # a part of -w
            lines[-1] += f" {option.name}"
        else:
            lines.append(_line(option))
    return lines


def _line(option: Option) -> str:
    return option.name if option.value is None else f"{option.name} {_quoted(option.value)}"


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    if '"' in value or "\\" in value:
        raise ProfileError(
            f"the cluster profile: {value} cannot stand in a #BSUB line",
            hint='bsub reads it in double quotes: remove " and \\',
        )
    return f'"{value}"'


def _name(target: Target) -> str:
    """Return the job's name; elements of arrays are numbered from 1, hpcdist's runs from 0."""
    if target.array_size is None:
        return target.name
    limit = f"%{target.max_parallel}" if target.max_parallel else ""
    return f"{target.name}[1-{target.array_size}]{limit}"


def _placement(cluster: ClusterProfile) -> Iterator[Option]:
    if cluster.partition is not None:
        yield Option("-q", cluster.partition)
    if cluster.account is not None:
        yield Option("-P", cluster.account)


def _resources(request: Request) -> Iterator[Option]:
    yield Option("-n", str(request.slots))
    if request.requirement:
        yield Option("-R", request.requirement)
    if request.gpu is not None:
        yield Option("-gpu", request.gpu)


def _end(job: JobSpec, request: Request) -> Iterator[Option]:
    if request.limit is not None:
        yield Option("-W", request.limit)
    if job.launch.requeue:  # where a host is lost, LSF starts the job again
        yield Option("-r", is_needed=False)


def _dependencies(dependencies: list[Dependency]) -> Iterator[Option]:
    conditions = [
        f"{_CONDITIONS[one.kind]}({_job(job_id)})" for one in dependencies for job_id in one.job_ids
    ]
    if conditions:
        yield Option("-w", " && ".join(conditions))
        # Without it, a job whose dependency can never come true waits for ever.
        yield Option("-ti", is_needed=False)


def _job(job_id: str) -> str:
    """Return an element of an array as LSF writes it: 11[3], for submitit's 11_3."""
    return _ELEMENT.sub(r"\1[\2]", job_id) if _ELEMENT.fullmatch(job_id) else job_id


# The same in lines that people can check by hand.


def explanation(job: JobSpec, cluster: ClusterProfile) -> list[str]:
    """Return slots, memory, GPUs and the run limit, and where each number comes from.

    Raises ProfileError, as the request does.
    """
    request = request_of(job, cluster)
    limit = None if request.limit is None else f"-W {request.limit}"
    return [
        _slots(job, cluster, request),
        _memory(job, cluster, request),
        _gpus(job, cluster, request),
        *_required(cluster, request),
        limit_line(job, cluster, limit),
    ]


def _slots(job: JobSpec, cluster: ClusterProfile, request: Request) -> str:
    size = product(request.nodes, request.slots_per_node, what="slot")
    asked = f"-n {request.slots}"
    if request.nodes > 1:
        asked += f", span[ptile={request.slots_per_node}]"
    elif request.slots > 1:
        asked += ", span[hosts=1]"
    return f"slots: {size} ({ranks_and_cpus(job, cluster)}): {asked}"


def _memory(job: JobSpec, cluster: ClusterProfile, request: Request) -> str:
    if request.mem is None:
        return no_memory_line()
    per = cluster.lsf.mem_per
    shares = {"slot": request.slots, "host": request.nodes, "job": 1}
    asked = f"rusage[mem={request.mem}]"
    mem_gb = mem_gb_per_node(job, cluster)
    if mem_gb is None:
        return (
            f"memory {request.mem} per {per} (the profile's directives; lsf.mem_per: {per}): "
            f"{asked}; {_times(request.mem, shares[per])} in all"
        )
    where = source(job.resources.mem_gb, cluster.mem_gb)
    return (
        f"memory {mem_gb:g} GB per node (mem_gb, {where}){_shared(cluster, request)}: {asked}; "
        f"{mem_gb * request.nodes:g} GB in all"
    )


def _shared(cluster: ClusterProfile, request: Request) -> str:
    lsf = cluster.lsf
    number = (request.mem or "").removesuffix("MB")
    unit = _UNITS[lsf.mem_unit]
    if lsf.mem_per == "slot":
        sign = f" / {counted(request.slots_per_node, 'slot')}"
    elif lsf.mem_per == "job":
        sign = f" x {counted(request.nodes, 'node')}"
    else:
        sign = ""
    bare = "" if lsf.mem_unit == "suffix" else f", lsf.mem_unit: {lsf.mem_unit}"
    return f"{sign} = {number} {unit} per {lsf.mem_per} (lsf.mem_per: {lsf.mem_per}{bare})"


def _times(amount: str, number: int) -> str:
    """Return 40 GB for 5GB times 8; what is no plain amount stays a product."""
    match = _AMOUNT.fullmatch(amount)
    if match is None:
        return f"{number} x {amount}"
    return f"{float(match[1]) * number:g} {match[2]}".rstrip()


def _gpus(job: JobSpec, cluster: ClusterProfile, request: Request) -> str:
    if not asks_for_gpus(job, cluster):
        return no_gpus_line(job)
    size = product(request.nodes, job.resources.gpus, what="GPU")
    if request.gpu is not None:
        return f'GPUs: {size} (lsf.gpu, counted per host): -gpu "{request.gpu}"'
    template = cluster.lsf.gpu_rusage
    if template is None:
        return f"GPUs: {size}; not asked for, for lsf.gpu is null: the queue must give them"
    asked = fill(template, gpus=job.resources.gpus)
    return f"GPUs: {size} (lsf.gpu_rusage): rusage[{asked}]"


def _required(cluster: ClusterProfile, request: Request) -> list[str]:
    """Return the one string, where the profile has put more into it than memory and GPUs."""
    words = ["constraint"] if cluster.constraint is not None else []
    if further_directives(cluster) != cluster.directives:
        words.append("the profile's directives")
    if not words:
        return []
    return [f'in one string, with {" and ".join(words)}: -R "{request.requirement}"']


# The script.


class FunctionTasks(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that submitit runs by itself in the place of hpcdist's agents: functions."""

    folder: str
    """Takes submitit's files; may hold %j, %A and %a, as with submitit's other executors."""
    per_node: int
    """Tasks on every host."""
    python: str | None
    """Command that starts Python, as bash reads it; None: the profile's interpreter."""
    stderr_to_stdout: bool
    """Both in one file; else in two."""


def job_script(
    job: JobSpec,
    cluster: ClusterProfile,
    target: Target,
    *,
    environment: Mapping[str, str],
    functions: FunctionTasks | None = None,
) -> str:
    """Return what bsub is given on its standard input: for an agent on every host, or `functions`.

    `environment` are variables that libraries read as they are loaded.
    """
    check_folder(target)
    python = shlex.quote(cluster.python or sys.executable)
    return render(
        "lsf.sh.j2",
        job_comment=comment(job.name),
        directives=directives(job, cluster, target),
        setup=cluster.setup,
        cwd=target.cwd,
        settings=cluster.environment | target.environment,
        environment=environment,
        num_nodes=job.resources.nodes,
        tasks_per_node=functions.per_node if functions else 1,
        launcher=cluster.lsf.launcher,
        launcher_options=_task_options(functions),
        python=python,
        logs=functions.folder if functions else str(target.submitit_folder),
        functions=functions,
        task_python=(functions and functions.python) or python,
    )


def _task_options(functions: FunctionTasks | None) -> list[str]:
    if functions is None:
        return []
    return ["--wait-for-all"] + ([] if functions.stderr_to_stdout else ["--separate-stderr"])
