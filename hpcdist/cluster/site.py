"""What a site offers, as its scheduler's own commands tell it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hpcdist.cluster.profile import LsfOptions
from hpcdist.machine.command import run_command

_TIMEOUT_S = 20.0


class Partition(Struct, frozen=True, kw_only=True):
    """A partition (Slurm) or queue (LSF); of what differs between its nodes, the least."""

    name: str
    is_default: bool = False
    num_nodes: int
    cpus: int
    """Per node."""
    mem_gb: float | None = None
    """Per node; None where the scheduler does not say."""
    gpus: int = 0
    """Per node that has any."""
    gpu_types: tuple[str, ...] = ()
    time_limit_min: float | None = None
    """None: unlimited, or not known."""


class Site(Struct, frozen=True, kw_only=True):
    """All that a first profile can be made of."""

    scheduler: Literal["slurm", "lsf"]
    gpu_request: Literal["gpus-per-node", "gres"]
    partitions: tuple[Partition, ...]
    accounts: tuple[str, ...] = ()
    """Those that the user may charge; empty where they are not known."""
    lsf: LsfOptions = LsfOptions()
    """How LSF wants to be asked there."""
    notes: tuple[str, ...] = ()
    """What could not be found out."""


def ask(*command: str) -> str:
    """What a command of the scheduler prints; raises SchedulerError as `run_command` does."""
    return run_command(command, timeout_s=_TIMEOUT_S).stdout
