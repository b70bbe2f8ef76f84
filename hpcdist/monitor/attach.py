"""Ranks of a living run as those need them who attach to one."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hpcdist.base.errors import UserError
from hpcdist.monitor.requests import check_ranks
from hpcdist.runs.events import decode_event, read_lines
from hpcdist.runs.run import Run


class _Start(msgspec.Struct, frozen=True, kw_only=True):
    """The first event of a rank, as far as it is of use here."""

    pid: int
    host: str
    node: int
    local_rank: int
    world_size: int
    local_world_size: int


class AttachedRank(msgspec.Struct, frozen=True, kw_only=True):
    """The process of one rank."""

    rank: int
    pid: int
    host: str
    """The scheduler's name of its node."""
    log: Path
    environment: dict[str, str]
    """Variables that say which rank it is."""


def find_rank(run: Run, rank: int) -> AttachedRank:
    """Return a rank of the newest attempt. Raises UserError where it has not begun."""
    check_ranks(run, [rank])
    attempt = max(0, run.newest_attempt())
    start = _first_event(run.event_file(rank, attempt))
    if start is None:
        raise UserError(f"rank {rank} of run {run.id} has not begun yet")
    variables = {
        "RANK": rank,
        "LOCAL_RANK": start.local_rank,
        "WORLD_SIZE": start.world_size,
        "LOCAL_WORLD_SIZE": start.local_world_size,
        "GROUP_RANK": start.node,
        "NODE_RANK": start.node,
        "HPCDIST_RUN_DIR": run.path.resolve(),
    }
    return AttachedRank(
        rank=rank,
        pid=start.pid,
        host=start.host,
        log=run.log_file(rank, attempt),
        environment={name: str(value) for name, value in variables.items()},
    )


def _first_event(path: Path) -> _Start | None:
    try:
        lines = next(read_lines(path), b"")
        return msgspec.convert(decode_event(lines.split(b"\n", 1)[0]), _Start)
    except (OSError, msgspec.ValidationError):
        return None
