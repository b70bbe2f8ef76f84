"""The batch script for LSF: what is asked for, and one command on every host. Pure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping

import msgspec

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.base import Target
from hpcdist.schedulers.lsf.directives import check_folder, directives
from hpcdist.schedulers.script import comment, render


class FunctionTasks(msgspec.Struct, frozen=True, kw_only=True):
    """What submitit runs by itself in the place of hpcdist's agents: a function in every task."""

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
    """What bsub is given on its standard input: for an agent on every host, or for `functions`;
    `environment` are variables that libraries read as they are loaded."""
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
        launcher_options=[*_launcher_options(job, cluster), *_task_options(functions)],
        python=python,
        logs=functions.folder if functions else str(target.submitit_folder),
        functions=functions,
        task_python=(functions and functions.python) or python,
    )


def _task_options(functions: FunctionTasks | None) -> list[str]:
    if functions is None:
        return []
    return ["--wait-for-all"] + ([] if functions.stderr_to_stdout else ["--separate-stderr"])


def _launcher_options(job: JobSpec, cluster: ClusterProfile) -> list[str]:
    options = []
    if "{gpus}" in cluster.lsf.launcher:
        options.append(f"--gpus {job.resources.gpus}")
    if cluster.lsf.node_rank_variable is not None:
        options.append(f"--node-rank-variable {shlex.quote(cluster.lsf.node_rank_variable)}")
    if "{host}" not in cluster.lsf.launcher:  # the script runs on a host that only launches
        options.append("--skip-first-host")
    return options
