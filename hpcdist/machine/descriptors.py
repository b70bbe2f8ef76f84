"""Open files: the limits of processes (`ulimit -n`), and how many a run of some size needs.

Every connection is an open file. Linux gives a process a soft limit, mostly 1,024, which it may
raise itself up to the hard one. Agents, and the store where the ranks meet, raise their own. A rank
gets back the soft limit that its user has where that is enough, as under torchrun: programs that
call select() fail with descriptors from 1,024 on.
"""

from __future__ import annotations

import contextlib
import math
import resource

import msgspec

_BESIDES = 64
"""Open files of a process besides its connections to others of the run: its libraries, its log, and
a few strangers that knock."""
_GROUPS_OF_RANK = 4
"""Process groups of all ranks for which a rank gets room: with gloo, each is a connection to every
other rank."""
_BESIDES_OF_RANK = 192
"""Open files of a rank besides those: of its data, of DataLoader workers, of NCCL."""

_MOST = 1 << 20
"""No run needs more; and there are programs that close all descriptors that they may have, one by
one."""


class Need(msgspec.Struct, frozen=True):
    """The open files that one process of a run needs at least."""

    who: str
    number: int


def needs_of_node_0(num_nodes: int, num_ranks: int) -> list[Need]:
    """Return those of the processes that are on node 0 only."""
    return [
        Need("the agent of node 0, which has a connection to each node,", num_nodes + _BESIDES),
        Need("the store of node 0, which has a connection to each rank,", num_ranks + _BESIDES),
    ]


def needs_of_node(ranks_per_node: int, num_ranks: int, *, is_gloo: bool) -> list[Need]:
    """Return those of the processes that are on every node."""
    agent = Need(
        "the agent, which has a file for each rank of its node,", ranks_per_node + _BESIDES
    )
    rank = Need("each rank, which has a connection to each other by gloo,", num_ranks + _BESIDES)
    return [agent, rank] if is_gloo else [agent]


def shortage(needs: list[Need], limit: float) -> str | None:
    """Return a sentence on the largest need where a process may not have as many open files as
    that; None where it may."""
    largest = max(needs, key=lambda need: need.number, default=None)
    if largest is None or largest.number <= limit:
        return None
    return (
        f"{largest.who} needs {largest.number:,} open files, and the hard limit is {limit:,.0f} "
        f"({ADVICE})"
    )


ADVICE = (
    "raise it where the run starts: ulimit -Hn, nofile in limits.conf, or LimitNOFILE of the "
    "scheduler's daemon"
)


def most_ranks(limit: float) -> float:
    """Return how many ranks, or nodes, a run can have where this is the hard limit."""
    return max(0.0, limit - _BESIDES)


def hard_limit() -> float:
    """Return how many open files a process of this user may have here at most."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return math.inf if hard == resource.RLIM_INFINITY else float(hard)


def soft_limit() -> int:
    """Return how many open files this process may have, as it is."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def soft_limit_without_room(num_files: int) -> int | None:
    """Return this process's soft limit where it is too low for so many files; None where not."""
    soft = soft_limit()
    has_room = soft == resource.RLIM_INFINITY or soft >= num_files + _BESIDES
    return None if has_room else soft


def use_all_descriptors() -> None:
    """Raise this process's soft limit to the hard one, or to what any run needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        _set(wanted, hard)


def settle_for_rank(soft: int, num_ranks: int) -> None:
    """Give this rank the soft limit of its user; where that is too low for connections to so many
    ranks, as many as it needs."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = _GROUPS_OF_RANK * num_ranks + _BESIDES_OF_RANK
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    _set(soft, hard)


def _set(soft: int, hard: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
