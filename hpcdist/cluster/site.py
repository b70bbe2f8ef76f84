"""What a site offers, as its scheduler's own commands tell it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from hpcdist.errors import SchedulerError

_TIMEOUT_S = 20.0
_SHOWN_LENGTH = 200


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
    notes: tuple[str, ...] = ()
    """What could not be found out."""


def ask(*command: str) -> str:
    """What a command of the scheduler prints.

    Raises SchedulerError with the command and its own message where it fails or does not answer.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise _failed(command, "there is no such command") from None
    except OSError as error:
        raise _failed(command, error.strerror or str(error)) from None
    except subprocess.TimeoutExpired:
        raise _failed(command, f"no answer within {_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[:_SHOWN_LENGTH]
        raise _failed(command, f"exit code {done.returncode}: {said or 'it said nothing'}")
    return done.stdout


def _failed(command: Sequence[str], problem: str) -> SchedulerError:
    return SchedulerError(
        f"{' '.join(command)}: {problem}",
        hint="run it on a login node of the cluster, and see that the command works there",
    )
