"""The batch script for LSF: what is asked for, and one command on every host. Pure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.schedulers import Target
from hpcdist.schedulers.lsf.directives import check_folder, directives
from hpcdist.schedulers.script import comment, render
from hpcdist.spec import JobSpec

AGENTS = ("hpcdist.launch.task", "main")
"""Module and function of hpcdist's agents."""
FUNCTIONS = ("submitit.core.submission", "submitit_main")
"""Module and function of what submitit runs by itself."""


def job_script(
    job: JobSpec,
    cluster: ClusterProfile,
    target: Target,
    *,
    environment: Mapping[str, str],
    entry: tuple[str, str],
    tasks_per_node: int = 1,
) -> str:
    """What bsub is given on its standard input; `environment` are variables that libraries read as
    they are loaded."""
    check_folder(target)
    module, function = entry
    return render(
        "lsf.sh.j2",
        job_comment=comment(job.name),
        directives=directives(job, cluster, target),
        setup=cluster.setup,
        cwd=target.cwd,
        settings=cluster.environment | target.environment,
        environment=environment,
        what="one agent, which forks the ranks" if entry == AGENTS else "as submitit's task",
        num_nodes=job.resources.nodes,
        tasks_per_node=tasks_per_node,
        launcher=cluster.lsf.launcher,
        launcher_options=_launcher_options(job, cluster),
        python=cluster.python or sys.executable,
        submitit_folder=str(target.submitit_folder),
        entry_module=module,
        entry=function,
    )


def _launcher_options(job: JobSpec, cluster: ClusterProfile) -> list[str]:
    options = []
    if "{gpus}" in cluster.lsf.launcher:
        options.append(f"--gpus {job.resources.gpus}")
    if cluster.lsf.node_rank_variable is not None:
        options.append(f"--node-rank-variable {shlex.quote(cluster.lsf.node_rank_variable)}")
    if "{host}" not in cluster.lsf.launcher:  # the script runs on a host that only launches
        options.append("--skip-first-host")
    return options
