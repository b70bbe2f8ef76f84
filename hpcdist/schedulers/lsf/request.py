"""The request of a job to LSF: the #BSUB lines, each with where its value comes from. Pure.

bsub's options are described at www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-bsub. bsub
reads #BSUB lines by itself, no shell does: a value with blanks, brackets or the like stands in
double quotes, and there is no way to put a double quote into it. An LSF may misread an option that
it does not know by its first letters, silently: none is sent that lsf.options does not list.

A requirement, the value of -R, is sections: `select[...] span[...] rusage[...]`; what stands in no
section belongs to select. IBM's bsub takes several -R and merges them, others refuse that: hpcdist
sends one, with the sections of the profile's directives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from hpcdist.base.errors import ProfileError
from hpcdist.cluster.channels import mail_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.base import Directive, Target
from hpcdist.schedulers.request import (
    asks_for_gpus,
    cpus_per_node,
    mem_gb_per_node,
    time_limit_min,
)

_PER_GB = {"suffix": 1e3, "KB": 1e6, "MB": 1e3, "GB": 1.0}
"""Unit of rusage[mem=...] -> how many are 10**9 bytes; LSF's own MB may be 5 % more."""
_CONDITIONS = {"afterok": "done", "afterany": "ended", "afternotok": "exit"}
_SECTIONS = ("select", "order", "span", "rusage", "same", "cu", "affinity")
"""In the order in which they are written; select must be the first."""
_OWN = re.compile(r"-(?:[JqPnWwrQKoeio]|nnodes|gpu|oo|eo|ti|rn|I\w*|is|Zs|pack)(?![\w-])|-[nW]\d")
"""Options that hpcdist sends itself, or that make another job of it."""
_SECTION = re.compile(r"(\w+)\s*\[([^\[\]]*)\]")


def directives(job: JobSpec, cluster: ClusterProfile, target: Target) -> list[Directive]:
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
    memory = ("resources.mem_gb|mem_gb", "lsf.mem_per", "lsf.mem_unit", "constraint", "directives")
    asked: list[tuple[str, str | None, str, tuple[str, ...]]] = [
        ("-J", name, "The run's id, by which bjobs lists it; of a sweep with its array.", ()),
        ("-q", cluster.partition, "", ("partition",)),
        ("-P", cluster.account, "", ("account",)),
        ("-n", str(nodes * slots), num_slots, ("resources.nodes", "resources.gpus", cpus)),
        ("-R", _merge(cluster.directives, own) or None, " ".join(filter(None, why)), memory),
        ("-gpu", gpu, "GPUs per host.", ("resources.gpus", "lsf.gpu", "gpu_type")),
        (
            *("-W", None if limit_min is None else lsf_time(limit_min), "Time limit, as HH:MM."),
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
                f"the cluster profile: lsf.options does not list {option}, which hpcdist needs: "
                f"{option} {value}",
                hint=f"add {option} to lsf.options, or leave out what asks for it",
            )
        if is_allowed:
            # Without -ti what waits in vain waits for ever.
            ends = " -ti" if option == "-w" and "-ti" in cluster.lsf.options else ""
            flag = f"{option} " if value else option
            found.append(Directive(flag, _quoted(value) + ends, reason, keys))
    return found


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


# Requirements.


def _merge(directives: Iterable[str], own: Mapping[str, str | None]) -> str:
    """Return the -R of the profile's directives and hpcdist's own sections as one requirement that
    asks for all; of a resource in rusage, the last has the word."""
    merged: dict[str, str] = {}
    theirs = [_parse_requirement(line) for line in directives if line.startswith("-R")]
    for sections in [*theirs, own]:
        for name, content in sections.items():
            earlier = merged.get(name)
            if not content or earlier is None:
                merged |= {name: content} if content else {}
            elif name == "select":
                merged[name] = f"({earlier}) && ({content})"
            else:  # with a colon where possible: old engines know no comma
                named = {one.partition("=")[0].strip() for one in re.split("[:,]", content)}
                lists = [
                    ":".join(one for one in terms if one.strip().partition("=")[0] not in named)
                    for terms in (usage.strip().split(":") for usage in earlier.split(","))
                ]
                is_timed = "duration=" in earlier + content  # which is about its list
                merged[name] = (", " if is_timed else ":").join([*filter(None, lists), content])
    return " ".join(f"{name}[{merged[name]}]" for name in _SECTIONS if name in merged)


def _parse_requirement(directive: str) -> dict[str, str]:
    found = re.fullmatch(r"""-R\s*(?:"([^"]*)"|'([^']*)'|([^"'\s]+))\s*""", directive)
    text = next((part for part in found.groups() if part is not None), "") if found else ""
    pairs = [(name, content.strip()) for name, content in _SECTION.findall(text)]
    sections, rest = dict(pairs), _SECTION.sub(" ", text).strip()
    is_plain = len(sections) == len(pairs) and {*sections} <= {*_SECTIONS} - {"span"}
    is_whole = not re.search(r"[\[\]{}]", rest) and not (rest and "select" in sections)
    if found is None or not is_plain or not is_whole or "||" in sections.get("rusage", ""):
        raise ProfileError(
            f"the cluster profile: directives has {directive}, which does not go together with the "
            "-R that hpcdist sends",
            hint='write one plain string: -R "select[...] rusage[...]", with each section once, '
            "and without span, which --nodes and --gpus say",
        )
    return sections | ({"select": rest} if rest else {})
