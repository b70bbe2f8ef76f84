"""Runs in the nodes that `hpcdist dev` holds: each starts at once, after those before it.

What holds the nodes is a run itself, the dev run. To its scheduler, a run in it is a step without a
process here. The program of the dev run (`hpcdist/dev.py`) serves on each node, and takes orders
from a folder of that run's directory, which only its owner can write.
"""

from __future__ import annotations

import time

import msgspec
from msgspec.structs import replace

from hpcdist.base import files
from hpcdist.base.errors import JobError, UserError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import Run
from hpcdist.runs.spec import NodePlan, Submission
from hpcdist.schedulers import load_scheduler
from hpcdist.schedulers.base import Allocation, Plan, Target


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is to be started. The name of its file has when it was submitted, and its id."""

    cwd: str
    environment: dict[str, str]


def allocation_of(dev: Run) -> Allocation:
    """Return what a dev run holds."""
    scheduler = load_scheduler(str(dev.read_scheduler()))
    is_ready = files.is_there(dev.orders_folder) and not files.is_there(dev.verdict_file)
    if not is_ready or scheduler.conditions([dev])[dev.id].state not in ("running", "unknown"):
        raise UserError(
            f"{dev.id} takes no runs: it does not run yet, or has ended",
            hint=f"see hpcdist status {dev.id}; hpcdist dev gets an allocation",
        )
    num_nodes = dev.spec.outline.resources.nodes
    return Allocation(job_id=str(dev.read_job_id()), num_nodes=num_nodes, dev=str(dev.path))


def plan_in(dev: Run, job: JobSpec, cluster: ClusterProfile) -> Plan:
    """Check a job, and lay its ranks out over the nodes of a dev run."""
    held, launch, _ = dev.read_launch()
    for key in ("nodes", "gpus"):
        wanted, most = getattr(job.resources, key), getattr(held.resources, key)
        if wanted > most:
            raise JobError(
                f"resources.{key} is {wanted}, and {dev.id} has {most}",
                hint=f"ask for less: --{key} {most}; or get more: hpcdist dev --{key} {wanted}",
            )
    on_cpus = "cpu" in (job.launch.device, launch.device)
    launch = replace(
        launch,
        nodes=[NodePlan(address=one.address) for one in launch.nodes[: job.resources.nodes]],
        device="cpu" if on_cpus else launch.device,
        backend="gloo" if on_cpus else job.launch.backend,
        num_threads=None,
        environment={},
        warning_signals=["SIGUSR2", "SIGTERM"],  # as the end of the dev run nears, and comes
        limit_min=None,
        enforces_limits=True,  # those of the run; the scheduler keeps the dev run's
    )
    return Plan(launch=launch, cluster=cluster, dev=str(dev.path))


def give_order(dev: Run, run: Run, target: Target, plan: Plan) -> None:
    """Have a dev run start a run."""
    target.make_folders()
    run.write_submission(replace(dev.read_submission() or Submission(), step=True))
    environment = plan.cluster.environment | target.environment
    order = Order(cwd=target.cwd, environment=environment)
    file = dev.orders_folder / f"{time.time_ns()}-{run.id}.json"
    try:
        files.write_whole(file, files.to_json(msgspec.to_builtins(order)))
    except FileNotFoundError:
        allocation_of(dev)  # which says that it has ended
        raise
