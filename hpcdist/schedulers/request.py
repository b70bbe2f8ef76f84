"""A job's request on a cluster, whatever the scheduler's words for it: the resources that the job
and the profile ask for together, the script, and values in the words of schedulers."""

from __future__ import annotations

import math
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from hpcdist.base.errors import ProfileError, SchedulerError
from hpcdist.base.files import shipped_folder
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import call_command
from hpcdist.runs.spec import LaunchPlan, NodePlan
from hpcdist.schedulers.base import Plan, Start, Target

_ASK_TIMEOUT_S = 5.0


def cpus_per_node(job: JobSpec, cluster: ClusterProfile) -> int:
    """Return the CPUs for one node's agent and ranks."""
    per_rank = job.resources.cpus_per_gpu or cluster.cpus_per_gpu or 1
    return per_rank * job.resources.gpus


def time_limit_min(job: JobSpec, cluster: ClusterProfile) -> float | None:
    """Return the minutes until the job is ended; None: as the site has it."""
    return job.resources.time_limit_min or cluster.time_limit_min


def mem_gb_per_node(job: JobSpec, cluster: ClusterProfile) -> float | None:
    """Return the memory per node in GB (10**9 bytes); None: as the site has it."""
    return job.resources.mem_gb or cluster.mem_gb


def asks_for_gpus(job: JobSpec, cluster: ClusterProfile) -> bool:
    return job.launch.device != "cpu" and cluster.gpu_request != "none"


def lay_out(
    job: JobSpec,
    cluster: ClusterProfile,
    *,
    warning_signals: Sequence[str],
    limit_min: float | None = None,
) -> LaunchPlan:
    """Lay the ranks out over nodes that are alike, and not known yet."""
    num_threads = cpus_per_node(job, cluster) // job.ranks_per_node
    return LaunchPlan(
        nodes=[NodePlan() for _ in range(job.resources.nodes)],
        device=job.launch.device,
        backend=job.launch.backend,
        num_threads=num_threads,
        environment={"OMP_NUM_THREADS": str(num_threads)},
        interface=cluster.interface,
        warning_signals=list(warning_signals),
        limit_min=limit_min,
    )


def start_by_room(num_nodes: int, job: JobSpec) -> Start:
    """Return what is known of a job's start where so many nodes have room for it; jobs that wait
    may get them."""
    is_free = num_nodes >= job.resources.nodes
    return Start(says="what it asks for is free now" if is_free else "not enough is free now")


def refuse_keys(cluster: ClusterProfile, keys: Sequence[str], scheduler: str) -> None:
    """Raise ProfileError for the first of these keys that a profile has: it means nothing there."""
    for key in keys:
        if value := getattr(cluster, key):
            raise ProfileError(
                f"the cluster profile: {key} is {value}, and {scheduler} has none",
                hint=f"leave {key} out; docs/cluster-profiles.md says what each key means there",
            )


# The script.


_NAME = re.compile(r"\{\{ (\w+)( \| quote)? \}\}")


def render(template: str, job: JobSpec, target: Target, plan: Plan, **values: Any) -> str:
    """Fill a template of templates/; `values` are those that are the scheduler's own."""
    setup, folders = plan.cluster.setup, target.own_folders
    settings = plan.cluster.environment | target.environment
    python = plan.cluster.python or sys.executable
    # One line, and nothing that ends or escapes a comment.
    name = "".join(c if c.isprintable() else " " for c in job.name)
    common = {
        "job_comment": " ".join(name.split()),
        "num_nodes": job.resources.nodes,
        "cwd": target.cwd,
        "setup": [_fill("setup.sh", lines=setup)] if setup else [],
        "settings": [f"{key}={shlex.quote(value)}" for key, value in settings.items()],
        "environment": [f'{key}="${{{key}:-{of}}}"' for key, of in plan.launch.environment.items()],
        "python": python,
        "submitit_folder": target.submitit_folder,
        "own_folders": [_fill("own_folders.sh", folders=shlex.join(folders))] if folders else [],
        "start_agent": _fill("start_agent.sh", python=python),
    }
    return _fill(template, **(common | values)) + "\n"


def _fill(template: str, **values: Any) -> str:
    """Put values in the place of `{{ name }}`, or `{{ name | quote }}` for bash. A line with a list
    is repeated for each of its items, and left out where there are none; a name without a value is
    an error."""
    lines = []
    for line in _read_template(template):
        given = {name: values[name] for name, _ in _NAME.findall(line)}
        several = [name for name, value in given.items() if isinstance(value, list)]
        for item in given[several[0]] if several else [""]:
            texts = given | dict.fromkeys(several, item)
            lines.append(_NAME.sub(partial(_text, texts), line))
    return "\n".join(lines)


def _text(texts: Mapping[str, Any], name: re.Match[str]) -> str:
    return shlex.quote(str(texts[name[1]])) if name[2] else str(texts[name[1]])


@cache  # a sweep renders the same template for every point
def _read_template(name: str) -> list[str]:
    return (shipped_folder("templates") / name).read_text("utf-8").removesuffix("\n").split("\n")


# Values in the words of schedulers.


def parse_size(text: str) -> int | None:
    """Return the bytes of `1234K`, `4000mb` or `1.5 Gbytes`, whose units are powers of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgtp]?)(?:b|bytes)?", text, re.IGNORECASE)
    return int(float(found[1]) * 1024 ** " kmgtp".index(found[2].lower() or " ")) if found else None


def as_limit(minutes: float) -> str:
    """Return a time limit as --time and PBS's walltime take it: 5:30:00, rounded up to seconds."""
    hours, seconds = divmod(math.ceil(minutes * 60), 3600)
    return f"{hours}:{seconds // 60:02d}:{seconds % 60:02d}"


def parse_seconds(text: str) -> float | None:
    """Return the seconds of `00:01:00`, `12` or `12 second(s)`."""
    found = re.fullmatch(r"(?:(\d+):(\d\d):)?(\d+(?:\.\d+)?)(?: second.*)?", text)
    if found is None:
        return None
    return int(found[1] or 0) * 3600.0 + int(found[2] or 0) * 60 + float(found[3])


def parse_time(text: str, form: str = "%a %b %d %H:%M:%S %Y") -> float | None:
    """Return the Unix time of `Sun Nov 22 22:36:56 2026`, or of another form."""
    try:
        return time.mktime(time.strptime(text, form))
    except (ValueError, OverflowError):
        return None


def try_to_ask(*argv: str) -> str:
    """Return all that a command says; nothing where it does not answer in time: then the command
    that submits will tell."""
    try:
        done = call_command(argv, timeout_s=_ASK_TIMEOUT_S)
    except SchedulerError:
        return ""
    return f"{done.stdout}\n{done.stderr}"
