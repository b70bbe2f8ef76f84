"""What every rank sees of its place, told before it meets the others, and what is wrong with it.

Each rank reads its own environment as the workload will: lines of a cluster profile, a site's
prolog or a container may have changed it since the agent set it. A mismatch would show as a hang
in the first collective.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec


class RankCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank sees its place."""

    rank: int
    """As its agent ordered it."""
    host: str
    environment: dict[str, str]
    """RANK, WORLD_SIZE and MASTER_PORT, as the rank reads them."""
    gpu: str | None = None
    """UUID of its GPU."""


_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_PORT")


def check_rank(*, rank: int, host: str, gpu: str | None) -> RankCheck:
    """How the calling rank sees its place."""
    seen = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return RankCheck(rank=rank, host=host, environment=seen, gpu=gpu)


class RankChecks:
    """The checks of an attempt's ranks, as they come."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._by_rank: dict[int, RankCheck] = {}
        self._by_gpu: dict[str, RankCheck] = {}
        self._first: RankCheck | None = None

    def add(self, check: RankCheck) -> str | None:
        """Take a rank's check; what is wrong with its place, by itself or beside the others'."""
        wrong = self._wrong_numbers(check) or self._clash(check)
        self._by_rank.setdefault(check.rank, check)
        if check.gpu is not None:
            self._by_gpu.setdefault(check.gpu, check)
        self._first = self._first or check
        return wrong

    def _wrong_numbers(self, check: RankCheck) -> str | None:
        expected = {"RANK": check.rank, "WORLD_SIZE": self._world_size}
        return next(
            (
                f"{_place(check)} sees {name}={_shown(check.environment, name)}, must be {value}"
                for name, value in expected.items()
                if check.environment.get(name) != str(value)
            ),
            None,
        )

    def _clash(self, check: RankCheck) -> str | None:
        if (same := self._by_rank.get(check.rank)) is not None:
            return f"{_place(same)} and {_place(check)} are the same rank"
        if check.gpu is not None and (holder := self._by_gpu.get(check.gpu)) is not None:
            return f"{_place(holder)} and {_place(check)} have the same GPU, {check.gpu}"
        if self._first is None:
            return None
        theirs, mine = (_shown(one.environment, "MASTER_PORT") for one in (self._first, check))
        if mine == theirs:
            return None
        return (
            f"{_place(self._first)} sees MASTER_PORT={theirs}, {_place(check)} sees "
            f"MASTER_PORT={mine}"
        )


def _place(check: RankCheck) -> str:
    return f"rank {check.rank} on {check.host}"


def _shown(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name, "(not set)")
