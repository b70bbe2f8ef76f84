"""What bsub is asked for: a job, a cluster profile and a target in, options out. Pure.

bsub reads #BSUB lines by itself, no shell does: a value with blanks, brackets or the like stands in
double quotes, and there is no way to put a double quote into it. An engine may misread an option
that it does not know by its first letters, silently: none is sent that lsf.options does not list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from hpcdist.base.errors import ProfileError, RunDirectoryError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.base import Dependency, Target
from hpcdist.schedulers.lsf.request import Request, further_directives, request_of

_PATTERN_SIGNS = ("%", "\\", "\n", '"')
_PLAIN = re.compile(r"[\w./:-]+")
_ELEMENT = re.compile(r"(\d+)_(\d+)")
_CONDITIONS = {"afterok": "done", "afterany": "ended", "afternotok": "exit"}

_USES = {
    "-J": ("by which the job is found", ""),
    "-q": ("for the queue", "leave partition out"),
    "-P": ("for the project", "leave account out"),
    "-n": ("for the slots", "list -nnodes, where hosts are asked for"),
    "-nnodes": ("for the hosts", ""),
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


class Option(msgspec.Struct, frozen=True):
    """One option of bsub."""

    name: str
    value: str | None = None
    is_needed: bool = True
    """The job cannot do without; else it is left out where the profile does not list it."""


def directives(job: JobSpec, cluster: ClusterProfile, target: Target) -> list[str]:
    """The options of bsub, in a fixed order, each ready to stand behind #BSUB.

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
    """The file that LSF appends the script's output to; %J and %I are the job's id and index."""
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
    """The elements of an array are numbered from 1, hpcdist's runs from 0."""
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
    if request.by_nodes:
        yield Option("-nnodes", str(request.nodes))
    else:
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
    """An element of an array as LSF writes it: 11[3], for submitit's 11_3."""
    return _ELEMENT.sub(r"\1[\2]", job_id) if _ELEMENT.fullmatch(job_id) else job_id
