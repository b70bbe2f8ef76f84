"""The request of a job to Azure Machine Learning: a command job in YAML, and how its values come
about. Pure.

The keys are those of the page "CLI (v2) command job YAML schema". Azure brings the folder `code` to
every node, makes it the working directory, and mounts the run's folder of a datastore there; the
command is executed once per node. It unpacks the one archive that the folder holds:

    lib/         hpcdist, and what it needs
    run/         spec.json and, of a function, function.pkl
    snapshot/    the snapshot of the user's work tree, where the job has one
    resume/      the checkpoint that checkpoint.resume means
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping
from typing import Any, TypeAlias

from hpcdist.base.errors import ProfileError
from hpcdist.base.text import number_of, yaml_scalar
from hpcdist.cluster.profile import AzureOptions, ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import slug
from hpcdist.schedulers.base import LineMeaning, Target
from hpcdist.schedulers.request import limit_line, product, time_limit_min

CODE, ARCHIVE = "code", "code.tar.gz"
LIB, RUN, SNAPSHOT, RESUME = "lib", "run", "snapshot", "resume"
OUTPUT = "run"
"""The output by whose name the command finds the mounted run directory."""
_SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
_NEEDED = ("subscription", "resource_group", "workspace", "compute")
_WORDS_OF_OTHERS = ("partition", "account", "qos", "constraint", "gpu_type", "mem_gb", "directives")

Value: TypeAlias = "str | int | Mapping[str, Value]"


def check_profile(cluster: ClusterProfile) -> AzureOptions:
    """Return the section azure; ProfileError where a key is missing, or Azure has none such."""
    azure = cluster.azure
    missing = [key for key in _NEEDED if getattr(azure, key) is None]
    if azure.environment is None and azure.image is None:
        missing.append("environment")
    if missing:
        keys = " and ".join(f"azure.{key}" for key in missing)
        raise ProfileError(
            f"the cluster profile: {keys} {'are' if len(missing) > 1 else 'is'} not set",
            hint="`hpcdist cluster detect --scheduler azure` finds them, `hpcdist cluster copy "
            "azure` prints a profile to be filled in",
        )
    of_others = [key for key in _WORDS_OF_OTHERS if getattr(cluster, key)]
    of_others += ["gpu_request"] if cluster.gpu_request == "gres" else []
    for key in of_others:
        raise ProfileError(
            f"the cluster profile: {key} is {getattr(cluster, key)}, and Azure has none",
            hint=f"leave {key} out; what a node has is decided by the compute {azure.compute}",
        )
    return azure


def job_name(name: str) -> str:
    """Return the name of a run as Azure takes it: letters, digits, dashes and underscores; the SDK
    makes capitals small."""
    return re.sub(r"[^a-z0-9_-]", "-", name.lower())


def job_yaml(job: JobSpec, cluster: ClusterProfile, target: Target) -> str:
    """Return the job as `az ml job create --file` and the SDK read it.

    Raises ProfileError for a profile that lacks something.
    """
    lines = ["# hpcdist: " + " ".join(_printable(job.name).split())]
    lines += _lines(_document(job, cluster, target))
    return "\n".join(lines) + "\n"


def _document(job: JobSpec, cluster: ClusterProfile, target: Target) -> dict[str, Value]:
    azure = check_profile(cluster)
    limit_min = time_limit_min(job, cluster)
    settings = cluster.environment | target.environment
    variables = {key: value for key, value in settings.items() if key != "PYTHONPATH"}
    name = job_name(target.name)
    document: dict[str, Value] = {
        "$schema": _SCHEMA,
        "type": "command",
        "name": name,
        "display_name": _printable(job.name),
        "experiment_name": slug(job.name).replace(".", "-"),
        "code": CODE,
        "command": _command(cluster, target),
        "environment": {"image": azure.image} if azure.image else _asset(str(azure.environment)),
        "environment_variables": variables,
        "compute": f"azureml:{azure.compute}",
        "distribution": {"type": "pytorch", "process_count_per_instance": 1},
        "resources": {"instance_count": job.resources.nodes, "shm_size": f"{azure.shm_gb}g"},
    }
    if limit_min is not None:
        document["limits"] = {"timeout": math.ceil(limit_min * 60)}
    path = f"azureml://datastores/{azure.datastore}/paths/hpcdist/{name}"
    output: dict[str, Value] = {"type": "uri_folder", "mode": "rw_mount", "path": path}
    return document | {"outputs": {OUTPUT: output}}


def _asset(environment: str) -> str:
    return environment if environment.startswith("azureml:") else f"azureml:{environment}"


def _command(cluster: ClusterProfile, target: Target) -> str:
    """Return what each node executes in the folder of the code."""
    python = shlex.quote(cluster.python or "python")
    output = f"${{{{outputs.{OUTPUT}}}}}"
    return "\n".join(
        [
            "here=$PWD",
            *cluster.setup,
            'cd "$here" || exit 1',
            f"tar -xzf {ARCHIVE} || exit 1",
            f"export PYTHONPATH={_python_path(target)}${{PYTHONPATH:+:$PYTHONPATH}}",
            f"exec {python} -u -m hpcdist.schedulers.azure.start {output}",
        ]
    )


def _python_path(target: Target) -> str:
    """Return the package's folder, and what of the caller's PYTHONPATH is in the snapshot, for the
    shell."""
    entries = target.environment.get("PYTHONPATH", "").split(os.pathsep)
    snapshot = target.own_folders[-1] if target.own_folders else None
    inside = [
        os.path.normpath(f"{SNAPSHOT}/{os.path.relpath(entry, snapshot)}")
        for entry in entries
        if snapshot and os.path.commonpath([entry or "/", snapshot]) == snapshot
    ]
    return ":".join(f'"$here"/{shlex.quote(folder)}' for folder in (LIB, *inside))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


# YAML.


def _lines(values: Mapping[str, Any], indent: str = "") -> list[str]:
    """Return a mapping as lines of YAML; a text of several lines is a block."""
    lines = []
    for key, value in values.items():
        name = f"{indent}{yaml_scalar(key) if key != '$schema' else key}:"
        if isinstance(value, Mapping):
            lines += [name, *_lines(value, f"{indent}  ")] if value else [f"{name} {{}}"]
        elif isinstance(value, str) and key == "command":
            lines += [f"{name} |-", *(f"{indent}  {line}" for line in value.split("\n"))]
        else:
            lines.append(f"{name} {yaml_scalar(value) if isinstance(value, str) else value}")
    return lines


# In lines that people can check by hand.

LINE_MEANINGS = (
    LineMeaning("$schema:", "The format, which the SDK checks."),
    LineMeaning("type: command", "A job that executes one command on each of its nodes."),
    LineMeaning("name:", "The run's id, in letters that Azure takes."),
    LineMeaning("display_name:", "The job's name in the studio."),
    LineMeaning("experiment_name:", "The studio lists jobs of one experiment together."),
    LineMeaning("code:", "The folder that is uploaded: hpcdist, the run's files, the snapshot."),
    LineMeaning("command:", "bash that every node executes."),
    LineMeaning("here=", "The folder that Azure has brought."),
    LineMeaning("cd ", "Back there, wherever the profile's lines have gone."),
    LineMeaning("tar ", "Unpacks it."),
    LineMeaning(
        "export PYTHONPATH=", "hpcdist, and folders of the snapshot, are imported from there."
    ),
    LineMeaning("exec ", "Starts the node's agent, which forks its ranks."),
    LineMeaning("environment:", "", ["azure.image|azure.environment"]),
    LineMeaning(
        "environment_variables:", "Variables of the job and of the profile.", ["environment"]
    ),
    LineMeaning("compute:", "", ["azure.compute"]),
    LineMeaning("distribution:", "One process per node, which is told of the others."),
    LineMeaning("resources:", "Nodes, and shared memory for the workers of data loaders."),
    LineMeaning("instance_count:", "", ["resources.nodes"]),
    LineMeaning("shm_size:", "", ["azure.shm_gb"]),
    LineMeaning("limits:", "Time limit in seconds.", ["resources.time_limit_min|time_limit_min"]),
    LineMeaning("outputs:", "The folder where nodes write the run, mounted.", ["azure.datastore"]),
)
"""Lines of the YAML, and the keys that they come from."""


def explanation(job: JobSpec, cluster: ClusterProfile) -> list[str]:
    """Return nodes, CPUs, GPUs, shared memory, the time limit and the price per hour."""
    azure = cluster.azure
    nodes, per_node = job.resources.nodes, job.ranks_per_node
    ranks = product(nodes, per_node, what="rank")
    limit_min = time_limit_min(job, cluster)
    timeout = None if limit_min is None else f"limits.timeout {math.ceil(limit_min * 60)} s"
    given = f"{number_of(nodes, 'node')} of the compute {azure.compute}, each given whole"
    lines = [
        f"nodes: {given}, with one agent (distribution pytorch, process_count_per_instance 1)",
        f"ranks: {ranks}, on the node's GPUs if it has any, with an equal share of its CPUs each",
        f"shared memory: {azure.shm_gb} GiB per node (azure.shm_gb)",
        limit_line(job, cluster, timeout),
    ]
    if (price := cluster.node_price) is not None:
        lines.append(f"price: {nodes} x {price:g} = {nodes * price:g} per hour")
    return lines
