"""The agreement that nodes and ranks of a run must reach before the ranks meet.

A run whose nodes disagree (one sees no GPU, one belongs to another allocation, two ranks would
share a GPU) would otherwise hang until a time-out of half an hour, and say nothing of the reason.

Each rank, too, tells how it sees its place: it reads its own environment as the workload will.
Lines of a cluster profile, a site's prolog or a container may have changed it since the agent set
it, which would show as a hang in the first collective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from hpcdist.agent.node import AgentFile, Agreement, DisagreementError

CHECKED_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_PORT")
_UNSET = "(not set)"


class NodeFacts(AgentFile, frozen=True, kw_only=True):
    """The facts that an agent found out about its node, and tells node 0 as it joins."""

    num_nodes: int
    """As its scheduler told it."""
    ranks: int
    """Ranks that it will start."""


class RankCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a rank, as the rank sees it."""

    rank: int
    """As its agent ordered it."""
    host: str
    environment: dict[str, str]
    """CHECKED_VARIABLES, as the rank reads them."""
    gpu: str | None = None
    """UUID of its GPU."""


def agree(facts: Mapping[int, NodeFacts], backend: str) -> Agreement:
    """Return the values that hold for all nodes; `backend` is auto, gloo or nccl.

    Raises DisagreementError.
    """
    _require_same(facts, "num_nodes", "belongs to a job of {} nodes")
    _require_same(facts, "ranks", "starts {} ranks")
    _require_same(facts, "device", "has device {}")
    _require_unique_gpus(facts)
    first = facts[min(facts)]
    if first.num_nodes != len(facts):
        raise DisagreementError(
            f"{len(facts)} agents have joined, but the job has {first.num_nodes} nodes"
        )
    reached = Counter(found.master_addr for node, found in facts.items() if node)
    address = reached.most_common(1)[0][0] if reached else first.master_addr
    if backend == "auto":
        backend = "nccl" if first.device == "cuda" else "gloo"
    if backend == "nccl" and first.device != "cuda":
        raise DisagreementError("launch.backend is nccl, but the nodes show no GPU")
    return Agreement(master_addr=address, device=first.device, backend=backend)


def store_listens_on(facts: Mapping[int, NodeFacts], master_addr: str) -> str:
    """Return the address of node 0 by which all nodes reach it; empty, for all that it has, where
    they reach it by several."""
    reached = {found.master_addr for node, found in facts.items() if node}
    return master_addr if reached <= {master_addr} else ""


class RankChecks:
    """The checks of an attempt's ranks, as they come."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._by_rank: dict[int, RankCheck] = {}
        self._by_gpu: dict[str, RankCheck] = {}
        self._first: RankCheck | None = None

    def add(self, check: RankCheck) -> str | None:
        """Take a rank's check; return what is wrong with its place, or how it contradicts
        another."""
        wrong = self._contradiction(check)
        self._by_rank.setdefault(check.rank, check)
        if check.gpu is not None:
            self._by_gpu.setdefault(check.gpu, check)
        self._first = self._first or check
        return wrong

    def _contradiction(self, check: RankCheck) -> str | None:
        place = _place(check)
        for name, value in {"RANK": check.rank, "WORLD_SIZE": self._world_size}.items():
            if (seen := check.environment.get(name, _UNSET)) != str(value):
                return f"{place} sees {name}={seen}, must be {value}"
        if (same := self._by_rank.get(check.rank)) is not None:
            return f"{_place(same)} and {place} are the same rank"
        if check.gpu is not None and (holder := self._by_gpu.get(check.gpu)) is not None:
            return f"{_place(holder)} and {place} have the same GPU, {check.gpu}"
        first = self._first or check
        theirs, mine = (one.environment.get("MASTER_PORT", _UNSET) for one in (first, check))
        if mine == theirs:
            return None
        return f"{_place(first)} sees MASTER_PORT={theirs}, {place} sees MASTER_PORT={mine}"


def _require_same(facts: Mapping[int, NodeFacts], field: str, words: str) -> None:
    values = {node: getattr(found, field) for node, found in facts.items()}
    if len(set(values.values())) <= 1:
        return
    common = Counter(values.values()).most_common(1)[0][0]
    odd = next(node for node in sorted(values) if values[node] != common)
    other = next(node for node in sorted(values) if values[node] == common)
    raise DisagreementError(
        f"node {odd} (host {facts[odd].host}) {words.format(values[odd])}, "
        f"node {other} (host {facts[other].host}) {words.format(common)}"
    )


def _require_unique_gpus(facts: Mapping[int, NodeFacts]) -> None:
    owner: dict[str, str] = {}
    for node in sorted(facts):
        each = max(1, len(facts[node].gpus) // facts[node].ranks)
        for place, uuid in enumerate(facts[node].gpus):
            rank = f"rank {node * facts[node].ranks + place // each} on {facts[node].host}"
            if uuid in owner:
                raise DisagreementError(f"{owner[uuid]} and {rank} have the same GPU, {uuid}")
            owner[uuid] = rank


def _place(check: RankCheck) -> str:
    return f"rank {check.rank} on {check.host}"
