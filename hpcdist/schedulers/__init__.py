"""The schedulers: `base` has the protocol, each folder one scheduler, and
`hpcdist.cluster.schedulers` the table of them."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpcdist.base.errors import NoSchedulerError, SchedulerError, UserError
from hpcdist.cluster.schedulers import LOCAL, SCHEDULERS

if TYPE_CHECKING:
    from hpcdist.cluster.profile import ClusterProfile
    from hpcdist.schedulers.base import Allocation, Scheduler


def load_scheduler(name: str) -> Scheduler:
    """Return the scheduler called `name`; SchedulerError where this version has none."""
    if name not in SCHEDULERS:
        raise SchedulerError(
            f"this version of hpcdist has no scheduler {name}",
            hint="run it on this machine with --local",
        )
    scheduler: Scheduler = importlib.import_module(SCHEDULERS[name]).scheduler
    return scheduler


def load_requeuer(name: str) -> Scheduler | None:
    """Return the scheduler called `name` if it can start a job again, else None."""
    scheduler = load_scheduler(name) if name in SCHEDULERS else None
    return scheduler if scheduler is not None and scheduler.can_requeue else None


def find_allocation(environment: Mapping[str, str]) -> tuple[Scheduler, Allocation]:
    """Return the allocation of the shell with this environment, and whose it is.

    Raises UserError where there is none, or it has ended; SchedulerError where the scheduler does
    not answer.
    """
    schedulers = [one for one in map(load_scheduler, SCHEDULERS) if one.allocation_variable]
    for scheduler in schedulers:
        if job_id := environment.get(str(scheduler.allocation_variable)):
            return scheduler, scheduler.allocation(job_id, environment)
    variables = " nor ".join(str(one.allocation_variable) for one in schedulers)
    commands = " or ".join(f"{one.how_to_allocate} ({one.title})" for one in schedulers)
    raise UserError(
        f"--here is for a shell inside an allocation, and neither {variables} is set",
        hint=f"get one with {commands}, or submit a job: leave out --here",
    )


def detect_scheduler() -> str:
    """Return the name of this machine's scheduler: the first of the table that answers."""
    for name in SCHEDULERS:
        if load_scheduler(name).answers():
            return name
    schedulers = map(load_scheduler, SCHEDULERS)
    tried = [f"{one.version_command[0]} ({one.title})" for one in schedulers if one.version_command]
    raise NoSchedulerError(
        f"no scheduler was found: neither {' nor '.join(tried)} answers",
        hint="run it on this machine with --local, or go to a login node of the cluster",
    )


def host_of(profile: ClusterProfile) -> str | None:
    """Return the host that a profile's jobs are submitted from; None for this machine, and where
    the scheduler's commands are at hand: it is the host itself then."""
    names = SCHEDULERS if profile.scheduler == "auto" else (profile.scheduler,)
    commands = (load_scheduler(one).version_command for one in names)
    is_here = any(shutil.which(command[0]) for command in commands if command)
    return None if is_here else profile.host


def runs_here(name: str | None) -> bool:
    """Return whether runs of the scheduler called `name` are processes of this machine; without a
    name, or with one that this version does not know, they are not."""
    return name == LOCAL or (name in SCHEDULERS and load_scheduler(name).runs_here)
