"""A site, as its scheduler's commands describe it, and a first hpcdist.yaml for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from hpcdist.base.errors import SchedulerError
from hpcdist.base.text import number_of
from hpcdist.machine.command import run_command

_TIMEOUT_S = 20.0


class Partition(Struct, frozen=True, kw_only=True):
    """A partition (Slurm) or queue (LSF, PBS); of what differs between its nodes, the least."""

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

    scheduler: str
    gpu_request: Literal["gpus-per-node", "gres"] = "gpus-per-node"
    partitions: tuple[Partition, ...]
    accounts: tuple[str, ...] = ()
    """Accounts that the user may charge; empty where they are not known."""
    partitions_share_nodes: bool = False
    """The partitions have the same nodes, as far as is known: one profile says all there is."""


def ask(*command: str) -> str:
    """Return the output of a scheduler's command; raises SchedulerError as `run_command` does."""
    return run_command(command, timeout_s=_TIMEOUT_S).stdout


_HEAD = """# How jobs are asked for on this cluster; written from what {scheduler} told.
# `hpcdist cluster show` prints what counts, and where it comes from.

# The profile that is used without --cluster:
default: {default}

clusters:
"""
_FURTHER = """    # What every job runs first, before Python starts:
    # setup:
    #   - module load cuda
    #   - source ~/venvs/torch/bin/activate
    # environment:
    #   NCCL_DEBUG: WARN"""


def first_file(site: Site) -> str:
    """Return the text of the file: a profile for every partition with GPUs, and the default one.

    Raises SchedulerError where the site has no partition that is up.
    """
    if not site.partitions:
        raise SchedulerError(
            f"{site.scheduler} reports no partition that is up",
            hint="ask the site which partition to use, and write hpcdist.yaml by hand",
        )
    ranked = sorted(
        site.partitions,
        key=lambda one: (
            one.gpus == 0,
            not one.is_default,
            -one.gpus * one.num_nodes,
        ),
    )
    worth = [one for one in ranked if one.gpus or one.is_default] or ranked[:1]
    worth = worth[:1] if site.partitions_share_nodes else worth
    blocks = [list(_profile(site, one, json.dumps(one.name))) for one in worth]
    default = json.dumps(worth[0].name)
    blocks[0] = [*_profile(site, worth[0], default), _FURTHER]
    head = _HEAD.format(scheduler=site.scheduler, default=default)
    return head + "\n\n".join(map("\n".join, blocks)) + "\n"


def _profile(site: Site, partition: Partition, title: str) -> Iterator[str]:
    """Yield the lines of a partition's profile."""
    parts = [number_of(partition.cpus, "CPU")] if partition.cpus else []
    parts += [f"{partition.mem_gb:.0f} GB"] if partition.mem_gb else []
    parts += [number_of(partition.gpus, "GPU")] if partition.gpus else []
    nodes = f"{number_of(partition.num_nodes, 'node')} with {', '.join(parts) or 'nothing known'}"
    default = "; the site's default" if partition.is_default else ""
    yield f"  {title}:  # {nodes}{default}"
    yield f"    scheduler: {site.scheduler}"
    yield f"    partition: {json.dumps(partition.name)}"
    queues = [other.name for other in site.partitions if other is not partition]
    if site.partitions_share_nodes and queues:
        yield f"    # other queues: {', '.join(queues)}"
    if site.accounts:
        line = f"account: {json.dumps(site.accounts[0])}"
        yours = f"# {line}  # yours: {', '.join(site.accounts)}"
        yield f"    {yours if site.accounts[1:] else line}"
    yield f"    gpu_request: {site.gpu_request if partition.gpus else 'none'}"
    if types := partition.gpu_types:
        line = f"gpu_type: {json.dumps(types[0])}"
        yield (
            f"    # {line}  # it has {', '.join(types)}; unset: any" if types[1:] else f"    {line}"
        )
    if partition.gpus and (share := partition.cpus // partition.gpus):
        yield f"    cpus_per_gpu: {share}"
    if (limit_min := partition.time_limit_min) is not None:
        why = "the most that is allowed; shorter jobs often start earlier"
        yield f"    time_limit_min: {limit_min:g}  # {why}"
