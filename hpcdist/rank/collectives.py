"""The collective operations that a rank has begun, as torch's flight recorder has them.

The recorder keeps the newest operations of gloo and NCCL with their shapes. It is read within the
rank, as JSON: nobody unpickles what another process wrote. Its lines of the program are left out:
torch imports its compiler to tell them, and the stacks of the ranks have them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from hpcdist.runs.requests import Collectives, GroupRecord, Operation

_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Number of operations that the recorder keeps; torch before 2.8 knows the second only, and later
ones warn of it."""
_RENAMED_IN = (2, 8)
_RECORDED_OPERATIONS = 2000

C10D = "torch.distributed.distributed_c10d"
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
_OLDEST_PENDING = 4
_NS = 1e-9


UNRECORDED = Collectives(is_recorded=False)


def recorder_environment(before: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that turns the recorder on; nothing where the user has set it."""
    if any(name in before for name in _VARIABLES):
        return {}
    return {_variable(): str(_RECORDED_OPERATIONS)}


@functools.cache  # a node's agent asks for each rank, and packages are searched on a shared disk
def _variable() -> str:
    try:
        major, minor = version("torch").split(".")[:2]
        is_renamed = (int(major), int(minor)) >= _RENAMED_IN
    except (PackageNotFoundError, ValueError):
        is_renamed = True
    return _VARIABLES[0 if is_renamed else 1]


def own_collectives(newest: int) -> Collectives:
    """Return this process' account, with so many of the newest operations of each group, and the
    oldest ones that are pending."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump: Any = next((getattr(c10d, name) for name in _DUMPS if hasattr(c10d, name)), None)
    if dump is None:
        return UNRECORDED
    trace = msgspec.json.decode(dump(True, False))  # of all operations, also those that are done
    if not trace.get("entries"):
        return UNRECORDED
    account = collectives_of(trace, _members())
    for group in account.groups:
        pending = [each for each in group.operations[:-newest] if not each.is_done]
        group.operations[:-newest] = pending[:_OLDEST_PENDING]
    return account


def _members() -> dict[str, list[int] | None]:
    """Return the global ranks of each group that this process knows, by name."""
    distributed: Any = sys.modules.get(C10D)
    try:
        world = distributed._world  # noqa: SLF001 - there is no public list of groups
        size = distributed.get_world_size()
        groups = [(world.pg_names[group], ranks) for group, ranks in world.pg_group_ranks.items()]
    except Exception:  # noqa: BLE001 - another version of torch
        return {}
    return {name: None if len(ranks) == size else sorted(ranks) for name, ranks in groups}


def collectives_of(
    trace: Mapping[str, Any], members: Mapping[str, list[int] | None]
) -> Collectives:
    """Return the account that the recorder's JSON gives. What is sent from one rank to another is
    left out: each rank counts that by itself."""
    groups: dict[str, list[Operation]] = {}
    for entry in sorted(trace["entries"], key=lambda entry: int(entry["record_id"])):
        if not entry.get("is_p2p"):
            groups.setdefault(str(entry["process_group"][0]), []).append(_operation(entry))
    return Collectives(
        groups=[
            GroupRecord(name=name, ranks=members.get(name), operations=operations)
            for name, operations in groups.items()
        ]
    )


def _operation(entry: Mapping[str, Any]) -> Operation:
    backend, _, name = str(entry["profiling_name"]).partition(":")
    return Operation(
        number=int(entry["collective_seq_id"]),
        name=name or backend,
        sizes=[[int(size) for size in sizes] for sizes in entry.get("input_sizes") or ()],
        dtypes=[str(dtype) for dtype in entry.get("input_dtypes") or ()],
        begun_s=float(entry.get("time_created_ns") or 0) * _NS,
        is_done=bool(entry.get("retired")) or entry.get("state") == "completed",
    )
