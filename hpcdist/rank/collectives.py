"""The collective operations that a rank has begun, as torch's flight recorder has them.

The recorder keeps the newest operations of gloo and NCCL with their shapes. It is read within the
rank, as JSON: nobody unpickles what another process wrote. Its lines of the program are left out:
torch imports its compiler to tell them, and the stacks of the ranks have them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from hpcdist.runs.requests import Collectives, GroupRecord, Operation

_VARIABLE, _RECORDED_OPERATIONS = "TORCH_FR_BUFFER_SIZE", 2000
"""The number of operations that the recorder keeps; torch 2.7 does not know the variable."""

C10D = "torch.distributed.distributed_c10d"
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
_OLDEST_PENDING = 4
_NS = 1e-9


UNRECORDED = Collectives(is_recorded=False)


def recorder_environment(before: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that turns the recorder on; nothing where the user has set it, or by its
    older name."""
    is_set = _VARIABLE in before or "TORCH_NCCL_TRACE_BUFFER_SIZE" in before
    return {} if is_set else {_VARIABLE: str(_RECORDED_OPERATIONS)}


def own_collectives(newest: int) -> Collectives:
    """Return this process' account, with so many of the newest operations of each group, and the
    oldest ones that are pending."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump: Any = next((getattr(c10d, name) for name in _DUMPS if hasattr(c10d, name)), None)
    if dump is None:
        return UNRECORDED
    try:
        trace = msgspec.json.decode(
            dump(True, False)
        )  # of all operations, also those that are done
        account = collectives_of(trace, _members())
    except Exception:  # noqa: BLE001 - another version of torch: the stacks tell, too
        return UNRECORDED
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
    except Exception:  # noqa: BLE001 - another version of torch, or the groups were destroyed
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
            backend, _, name = str(entry["profiling_name"]).partition(":")
            operation = Operation(
                number=int(entry["collective_seq_id"]),
                name=name or backend,
                sizes=[[int(size) for size in sizes] for sizes in entry.get("input_sizes") or ()],
                dtypes=[str(dtype) for dtype in entry.get("input_dtypes") or ()],
                begun_s=float(entry.get("time_created_ns") or 0) * _NS,
                is_done=bool(entry.get("retired")) or entry.get("state") == "completed",
            )
            groups.setdefault(str(entry["process_group"][0]), []).append(operation)
    return Collectives(
        groups=[
            GroupRecord(name=name, ranks=members.get(name), operations=operations)
            for name, operations in groups.items()
        ],
        is_recorded=bool(trace["entries"]),
    )
