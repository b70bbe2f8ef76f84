"""A site, as its scheduler's commands describe it, and a first hpcdist.yaml for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from hpcdist.base.errors import SchedulerError
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

    scheduler: str
    gpu_request: Literal["gpus-per-node", "gres"]
    partitions: tuple[Partition, ...]
    accounts: tuple[str, ...] = ()
    """Accounts that the user may charge; empty where they are not known."""
    lsf: LsfOptions = LsfOptions()
    """LSF's options there."""
    partitions_share_nodes: bool = False
    """The partitions have the same nodes, as far as is known: one profile says all there is."""
    notes: tuple[str, ...] = ()
    """Sentences on what could not be found out."""


def ask(*command: str) -> str:
    """Return the output of a scheduler's command; raises SchedulerError as `run_command` does."""
    return run_command(command, timeout_s=_TIMEOUT_S).stdout


_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_NOT_TEXT = {"true", "false", "null"}
_FOR_TRIALS = re.compile(
    r"debug|dev|test|short|interactive|express|preempt|scavenge", re.IGNORECASE
)

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


def first_file(site: Site, *, name: str | None = None) -> str:
    """The text of the file: a profile for every partition with GPUs, and for the default one.

    `name` is what the default profile is called, in place of its partition's name.

    Raises SchedulerError where the site has no partition that is up.
    """
    default, *others = _worth_a_profile(site)
    names = {partition.name: partition.name for partition in (default, *others)}
    names[default.name] = name or default.name
    head = _HEAD.format(scheduler=site.scheduler, default=_text(names[default.name]))
    profiles = [
        "\n".join(_profile(site, partition, names[partition.name], is_first=partition is default))
        for partition in (default, *others)
    ]
    return head + "\n\n".join(profiles) + "\n"


def _worth_a_profile(site: Site) -> list[Partition]:
    """The one to be the default first: with GPUs, the site's own default, not for trials, large."""
    if not site.partitions:
        raise SchedulerError(
            f"{site.scheduler} tells of no partition that is up",
            hint="ask the site which partition to use, and write hpcdist.yaml by hand",
        )
    ranked = sorted(site.partitions, key=_order)
    worth = [partition for partition in ranked if partition.gpus or partition.is_default]
    return (worth or ranked)[:1] if site.partitions_share_nodes else worth or ranked[:1]


def _order(partition: Partition) -> tuple[bool, bool, bool, int]:
    return (
        partition.gpus == 0,
        not partition.is_default,
        _FOR_TRIALS.search(partition.name) is not None,
        -partition.gpus * partition.num_nodes,
    )


def _profile(site: Site, partition: Partition, name: str, *, is_first: bool) -> Iterator[str]:
    yield f"  {_text(name)}:  # {_description(partition)}"
    yield f"    scheduler: {site.scheduler}"
    yield f"    partition: {_text(partition.name)}"
    if is_first and site.partitions_share_nodes:
        queues = [other.name for other in site.partitions if other is not partition]
        if queues:
            yield f"    # other queues: {', '.join(queues)}"
    yield from _account(site.accounts)
    yield from _gpus(site, partition)
    if partition.time_limit_min is not None:
        yield (
            f"    time_limit_min: {partition.time_limit_min:g}  # the most that is allowed; "
            f"shorter jobs often start earlier"
        )
    yield from _lsf(site.lsf)
    if is_first:
        yield _FURTHER


def _lsf(options: LsfOptions) -> Iterator[str]:
    """The keys that differ from what holds without them."""
    values, usual = msgspec.to_builtins(options), msgspec.to_builtins(LsfOptions())
    other = {key: value for key, value in values.items() if value != usual[key]}
    if other:
        yield "    lsf:  # as LSF tells; see the site's documentation"
        yield from (f"      {key}: {json.dumps(value)}" for key, value in other.items())


def _account(accounts: Sequence[str]) -> Iterator[str]:
    if len(accounts) == 1:
        yield f"    account: {_text(accounts[0])}"
    elif accounts:
        yield f"    # account: {_text(accounts[0])}  # yours: {', '.join(accounts)}"


def _gpus(site: Site, partition: Partition) -> Iterator[str]:
    if not partition.gpus:
        yield "    gpu_request: none"
        return
    yield f"    gpu_request: {site.gpu_request}"
    if len(partition.gpu_types) == 1:
        yield f"    gpu_type: {_text(partition.gpu_types[0])}"
    elif partition.gpu_types:
        types = ", ".join(partition.gpu_types)
        yield f"    # gpu_type: {_text(partition.gpu_types[0])}  # it has {types}; unset: any"
    if share := partition.cpus // partition.gpus:
        yield f"    cpus_per_gpu: {share}"


def _description(partition: Partition) -> str:
    """In words; what differs between nodes is the least of it."""
    parts = [_count(partition.cpus, "CPU")] if partition.cpus else []
    parts += [f"{partition.mem_gb:.0f} GB"] if partition.mem_gb else []
    parts += [_count(partition.gpus, "GPU")] if partition.gpus else []
    default = "; the site's default" if partition.is_default else ""
    return (
        f"{_count(partition.num_nodes, 'node')} with {', '.join(parts) or 'nothing known'}{default}"
    )


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def _text(value: str) -> str:
    """A text as YAML: in quotes where it would be read as something else."""
    if _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    return json.dumps(value)
