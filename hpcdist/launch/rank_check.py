"""What every rank sees of its place, told before it meets the others, and what is wrong with it.

Each rank reads its own environment as the workload will: lines of a cluster profile, a site's
prolog or a container may have changed it since the agent set it. A mismatch would show as a hang
in the first collective.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import msgspec

_WHOLE_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK")


class RankCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank sees its place."""

    rank: int
    """As its agent ordered it."""
    host: str
    environment: dict[str, str]
    """RANK, WORLD_SIZE and their like, as the rank reads them."""
    gpu: str | None = None
    """UUID of its GPU."""


VARIABLES = (*_WHOLE_NUMBERS, "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")


def check_rank(*, rank: int, host: str, gpu: str | None) -> RankCheck:
    """How the calling rank sees its place."""
    seen = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return RankCheck(rank=rank, host=host, environment=seen, gpu=gpu)


def first_mismatch(check: RankCheck, others: Iterable[RankCheck], world_size: int) -> str | None:
    """What is wrong with a rank's place, or with its place beside the others'; None: nothing."""
    return _wrong_numbers(check, world_size) or next(
        (text for other in others if (text := _clash(check, other))), None
    )


def _wrong_numbers(check: RankCheck, world_size: int) -> str | None:
    expected = {"RANK": check.rank, "WORLD_SIZE": world_size}
    return next(
        (
            f"{_place(check)} sees {name}={_shown(check.environment, name)}, must be {value}"
            for name, value in expected.items()
            if check.environment.get(name) != str(value)
        ),
        None,
    )


def _clash(check: RankCheck, other: RankCheck) -> str | None:
    if check.rank == other.rank:
        return f"{_place(check)} and {_place(other)} are the same rank"
    if check.gpu is not None and check.gpu == other.gpu:
        return f"{_place(other)} and {_place(check)} have the same GPU, {check.gpu}"
    mine, theirs = (one.environment.get("MASTER_PORT") for one in (check, other))
    if mine != theirs:
        return f"{_place(other)} sees MASTER_PORT={theirs}, {_place(check)} sees MASTER_PORT={mine}"
    return None


def _place(check: RankCheck) -> str:
    return f"rank {check.rank} on {check.host}"


def _shown(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name, "(not set)")
