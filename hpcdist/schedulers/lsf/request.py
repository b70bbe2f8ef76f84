"""The request of a job to LSF: slots, GPUs, memory and the -R string as values, the #BSUB lines,
and the batch script with an agent on every host. Pure.

bsub's options are described at www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-bsub. bsub
reads #BSUB lines by itself, no shell does: a value with blanks, brackets or the like stands in
double quotes, and there is no way to put a double quote into it. An LSF may misread an option that
it does not know by its first letters, silently: none is sent that lsf.options does not list.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec

from hpcdist.base.errors import ProfileError
from hpcdist.base.text import number_of
from hpcdist.cluster.channels import mail_of
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
from hpcdist.schedulers.base import LineMeaning, Target
from hpcdist.schedulers.request import (
    NO_MEMORY_LINE,
    asks_for_gpus,
    check_folder,
    cpus_per_node,
    limit_line,
    mem_gb_per_node,
    no_gpus_line,
    product,
    ranks_and_cpus,
    render,
    source,
    time_limit_min,
)

_PER_GB = {"suffix": 1e3, "KB": 1e6, "MB": 1e3, "GB": 1.0}
"""Unit of rusage[mem=...] -> how many are a GB of hpcdist (10**9 bytes).

LSF's own MB may be 2**20 bytes: the job then has up to 5 % more than it asked for (7 % where the
unit is GB), and never less.
"""
_PLAIN = re.compile(r"[\w./:-]+")
_ELEMENT, _ELEMENT_OF_LSF = re.compile(r"^(\d+)_(\d+)$"), r"\1[\2]"
"""An element of an array: 11_3 for submitit, 11[3] for LSF."""
_CONDITIONS = {"afterok": "done", "afterany": "ended", "afternotok": "exit"}

_FLAG = "-"
"""Stands for an option that takes no value."""
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
    "-N": ("for the mail at the end", "leave mail out of notify"),
    "-u": ("for the mail at the end", "leave the address out of notify"),
    "-w": ("for the jobs to wait for", "leave --after, --summary-after and --max-parallel out"),
}
"""Option that is needed -> what for, and how to do without."""
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_PER = {"task": "slot", "slot": "slot", "host": "host", "job": "job"}
"""Ends of a resource's amount, as in mem=16GB/host, which win over what the site counts by."""
_NUM_GPUS = re.compile(r"\bnum=(\d+)(?:/(task|host))?(?=:|$)")
_AFFINITY = re.compile(r"\baffinity\[(core|thread)\((\d+)\b")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a request."""

    nodes: int
    slots_per_node: int
    gpu: str | None
    """Value of -gpu."""
    gpu_rusage: str | None
    """Request for GPUs in rusage[...], in place of -gpu."""
    requirement: str
    """Value of -R; empty: nothing is required."""
    needs_requirement: bool
    """Something in -R is hpcdist's own, and not of the profile's directives."""
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
    nodes, slots = job.resources.nodes, cpus_per_node(job, cluster)
    gpu, gpu_rusage = _gpu_request(job, cluster)
    mem = _mem(job, cluster)
    own = {
        "select": cluster.constraint,
        "span": f"ptile={slots}" if nodes > 1 else "hosts=1" if slots > 1 else None,
        "rusage": ":".join(filter(None, [mem and f"mem={mem}", gpu_rusage])),
    }
    own_sections = {name: content for name, content in own.items() if content}
    of_profile = [
        parse_requirement(text) for text in map(requirement_of, cluster.directives) if text
    ]
    merged = merge_requirements([*of_profile, own_sections])
    limit_min = time_limit_min(job, cluster)
    return Request(
        nodes=nodes,
        slots_per_node=slots,
        gpu=gpu,
        gpu_rusage=gpu_rusage,
        requirement=write_requirement(merged),
        needs_requirement=bool(own_sections),
        mem=rusage_value(merged.get("rusage", ""), "mem"),
        limit=None if limit_min is None else lsf_time(limit_min),
    )


def notes_on(request: Request) -> list[str]:
    """Return what a user should know of a request, one sentence each."""
    found = _AFFINITY.search(request.requirement)
    number = int(found[2]) if found else 1
    if found is None or number == 1:
        return []
    return [
        (
            f"{found[0]}...] of the profile binds each slot to {number_of(number, found[1])}, and "
            f"hpcdist asks for a slot per CPU: {number_of(request.slots, 'slot')} take "
            f"{number_of(request.slots * number, found[1])} in all; for {request.slots} in all, "
            "leave affinity out or lower cpus_per_gpu"
        )
    ]


def lsf_time(minutes: float) -> str:
    """Return a duration as bsub -W reads it: HH:MM, rounded up, and never with seconds."""
    hours, rest = divmod(math.ceil(minutes), 60)
    return f"{hours:02d}:{rest:02d}"


def _check(cluster: ClusterProfile) -> None:
    # Once more, for the directives of a profile for `auto` were checked as Slurm's.
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
    if any(sign in (cluster.constraint or "") for sign in '[]{}"\\'):
        raise ProfileError(
            f"the cluster profile: constraint is {cluster.constraint}, which cannot stand in "
            "select[...]",
            hint="write what stands between the brackets, such as: gpu32gb && model==XeonE5",
        )


def _mem(job: JobSpec, cluster: ClusterProfile) -> str | None:
    """Return the memory for one slot, host or job, as the site means it, rounded up."""
    mem_gb = mem_gb_per_node(job, cluster)
    if mem_gb is None:
        return None
    unit = cluster.lsf.mem_unit
    share = {"slot": 1 / cpus_per_node(job, cluster), "host": 1, "job": job.resources.nodes}
    # Without the rounding, the noise of a division would become a unit more.
    number = math.ceil(round(mem_gb * _PER_GB[unit] * share[cluster.lsf.mem_per], 6))
    return f"{number}MB" if unit == "suffix" else str(number)


def _gpu_request(job: JobSpec, cluster: ClusterProfile) -> tuple[str | None, str | None]:
    """Return the value of -gpu, and the term of rusage[...]: one of them, or none."""
    if not asks_for_gpus(job, cluster):
        return None, None
    lsf, model = cluster.lsf, cluster.gpu_type
    template = lsf.gpu_rusage or lsf.gpu
    takes_model = not lsf.gpu_rusage and lsf.gpu is not None and "gmodel=" not in lsf.gpu
    if model is not None and not takes_model:
        key = "lsf.gpu_rusage" if lsf.gpu_rusage else "lsf.gpu"
        raise ProfileError(
            f"the cluster profile: gpu_type is {model}, for which {key} ({template or 'null'}) "
            "has no place",
            hint="gpu_type becomes gmodel= of -gpu: leave gpu_type out, or lsf.gpu without "
            "gmodel=; hosts are chosen with constraint",
        )
    text = template and fill(template, gpus=job.resources.gpus)
    if lsf.gpu_rusage:
        return None, text
    return (f"{text}:gmodel={model}" if model else text), None


# The #BSUB lines.

_CPUS = "resources.cpus_per_gpu|cpus_per_gpu"
LINE_MEANINGS = (
    LineMeaning("#BSUB -J ", "The run's id, by which bjobs lists it; of a sweep with its array."),
    LineMeaning("#BSUB -q ", "", ["partition"]),
    LineMeaning("#BSUB -P ", "", ["account"]),
    LineMeaning(
        "#BSUB -n ",
        "Slots over all hosts: nodes x GPUs per node x CPUs per GPU.",
        ["resources.nodes", "resources.gpus", _CPUS],
    ),
    LineMeaning(
        "#BSUB -R ",
        "Demands on the hosts: slots per host (span), memory as the site counts it (rusage), and "
        "what the profile asks for.",
        ["resources.mem_gb|mem_gb", "lsf.mem_per", "lsf.mem_unit", "constraint", "lsf.gpu_rusage"],
    ),
    LineMeaning("#BSUB -gpu ", "GPUs per host.", ["resources.gpus", "lsf.gpu", "gpu_type"]),
    LineMeaning("#BSUB -W ", "Time limit, as HH:MM.", ["resources.time_limit_min|time_limit_min"]),
    LineMeaning("#BSUB -r", "", ["launch.requeue"]),
    LineMeaning("#BSUB -o ", "LSF's own report on the job."),
    LineMeaning("#BSUB -w ", "Jobs that must have ended: --after, or --max-parallel."),
)
"""Lines of the script, and the keys that they come from."""


def directives(job: JobSpec, cluster: ClusterProfile, target: Target) -> list[str]:
    """Return the options of bsub, in a fixed order, each ready to stand behind #BSUB.

    Raises ProfileError where one that is needed is not allowed, or LSF cannot be asked for it.
    """
    request, allowed = request_of(job, cluster), cluster.lsf.options
    name, log = target.name, "%J"  # %J and %I are the job's id and index
    if target.array_size is not None:  # from 1 on; hpcdist numbers an array's runs from 0
        name += f"[1-{target.array_size}]"
        name += f"%{target.max_parallel}" if target.max_parallel else ""
        log = "%J_%I"
    conditions = [
        f"{_CONDITIONS[one.kind]}({_ELEMENT.sub(_ELEMENT_OF_LSF, job_id)})"
        for one in target.dependencies
        for job_id in one.job_ids
    ]
    values = {
        "-J": name,
        "-q": cluster.partition,
        "-P": cluster.account,
        "-n": str(request.slots),
        "-R": request.requirement,
        "-gpu": request.gpu,
        "-W": request.limit,
        "-r": "",
        "-o": f"{target.submitit_folder}/{log}_lsf.out",
        "-N": None if (address := mail_of(cluster.notify)) is None else _FLAG,
        "-u": address,
        "-w": " && ".join(conditions),
    }
    lines: list[str] = []
    for option, value in values.items():
        if option == "-r":  # where a host is lost, LSF starts the job again
            lines += ["-r"] if job.launch.requeue and "-r" in allowed else []
        elif value:
            line = option if value is _FLAG else f"{option} {_quoted(value)}"
            if option not in allowed and (option != "-R" or request.needs_requirement):
                purpose, without = _USES[option]
                raise ProfileError(
                    f"the cluster profile: lsf.options does not list {option}, which hpcdist needs "
                    f"{purpose}: {line}",
                    hint=f"add {option} to lsf.options" + (f", or {without}" if without else ""),
                )
            lines.append(line)
    if conditions and "-ti" in allowed:  # else what waits in vain waits for ever
        lines[-1] += " -ti"
    return [*lines, *_further_directives(cluster)]


def _further_directives(cluster: ClusterProfile) -> list[str]:
    """Return the profile's directives without their -R, which is merged with hpcdist's own."""
    return [line for line in cluster.directives if requirement_of(line) is None]


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    if '"' in value or "\\" in value:
        raise ProfileError(
            f"the cluster profile: {value} cannot stand in a #BSUB line",
            hint='bsub reads it in double quotes: remove " and \\',
        )
    return f'"{value}"'


# The same in lines that people can check by hand.


def explanation(job: JobSpec, cluster: ClusterProfile) -> list[str]:
    """Return slots, memory, GPUs and the run limit, and where each number comes from.

    Raises ProfileError, as the request does.
    """
    request = request_of(job, cluster)
    nodes, slots = request.nodes, request.slots_per_node
    span = f", span[ptile={slots}]" if nodes > 1 else ", span[hosts=1]" if slots > 1 else ""
    further = ["constraint"] if cluster.constraint is not None else []
    if _further_directives(cluster) != cluster.directives:
        further.append("the profile's directives")
    whole = f'in one string, with {" and ".join(further)}: -R "{request.requirement}"'
    size = f"{product(nodes, slots, what='slot')} ({ranks_and_cpus(job, cluster)})"
    return [
        f"slots: {size}: -n {request.slots}{span}",
        _memory(job, cluster, request),
        _gpus(job, cluster, request),
        *([whole] if further else []),
        limit_line(job, cluster, request.limit and f"-W {request.limit}"),
    ]


def _memory(job: JobSpec, cluster: ClusterProfile, request: Request) -> str:
    if request.mem is None:
        return NO_MEMORY_LINE
    unit = cluster.lsf.mem_unit
    text, _, suffix = request.mem.partition("/")
    per = _PER.get(suffix, cluster.lsf.mem_per)
    number = {"slot": request.slots, "host": request.nodes, "job": 1}[per]
    asked = f"rusage[mem={request.mem}]"
    amount = _AMOUNT.fullmatch(text)
    mem_gb = mem_gb_per_node(job, cluster)
    if mem_gb is None:
        # What is no plain amount stays a product.
        total = f"{float(amount[1]) * number:g} {amount[2]}".rstrip() if amount else None
        counted = "" if suffix in _PER else f"; lsf.mem_per: {per}"
        return (
            f"memory {text} per {per} (the profile's directives{counted}): "
            f"{asked}; {total or f'{number} x {text}'} in all"
        )
    shared = {
        "slot": f" / {number_of(request.slots_per_node, 'slot')}",
        "host": "",
        "job": f" x {number_of(request.nodes, 'node')}",
    }
    amount_text = f"{request.mem.removesuffix('MB')} {'MB' if unit == 'suffix' else unit}"
    origin = f"lsf.mem_per: {per}" + ("" if unit == "suffix" else f", lsf.mem_unit: {unit}")
    # What is asked for is rounded up for each slot, and so is more in all.
    total_gb = float(amount[1]) / _PER_GB[unit] * number if amount else mem_gb * request.nodes
    return (
        f"memory {mem_gb:g} GB per node (mem_gb, {source(job.resources.mem_gb, cluster.mem_gb)})"
        f"{shared[per]} = {amount_text} per {per} ({origin}): {asked}; {total_gb:g} GB in all"
    )


def _gpus(job: JobSpec, cluster: ClusterProfile, request: Request) -> str:
    if not asks_for_gpus(job, cluster):
        return no_gpus_line(job)
    size = product(request.nodes, job.resources.gpus, what="GPU")
    if request.gpu is not None:
        return f'GPUs: {_counted_gpus(request, size)}: -gpu "{request.gpu}"'
    if request.gpu_rusage is None:
        return f"GPUs: {size}; not requested, because lsf.gpu is null: the queue must assign them"
    return f"GPUs: {size} (lsf.gpu_rusage): rusage[{request.gpu_rusage}]"


def _counted_gpus(request: Request, size: str) -> str:
    """Return how many GPUs -gpu gives; `size` is what the job wants."""
    found = _NUM_GPUS.search(request.gpu or "")
    if found is None:
        return f"{size} (lsf.gpu)"
    number = int(found[1])
    if found[2] != "task":
        return f"{product(request.nodes, number, what='GPU')} (lsf.gpu, counted per host)"
    gpus = number_of(request.slots * number, "GPU")
    return (
        f"{number_of(request.slots, 'slot')} x {number_of(number, 'GPU')} = {gpus} (lsf.gpu, "
        f"counted per task, which is a slot; the job wants {size})"
    )


# The script.


def job_script(
    job: JobSpec, cluster: ClusterProfile, target: Target, *, environment: Mapping[str, str]
) -> str:
    """Return what bsub is given on its standard input; `environment` are variables that libraries
    read as they are loaded."""
    check_folder(target, '%\\\n"', "LSF takes for a pattern, or for the end of the path")
    return render(
        "lsf.sh.j2",
        job,
        target,
        cluster,
        directives=directives(job, cluster, target),
        environment=environment,
        launcher=cluster.lsf.launcher,
    )
