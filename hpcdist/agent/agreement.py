"""The agreement that the nodes of a run must reach before its ranks meet.

A run whose nodes disagree (one sees no GPU, one belongs to another allocation, two ranks would
share a GPU) would otherwise hang until a time-out of half an hour, and say nothing of the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hpcdist.agent.node import AgentFile, Agreement, DisagreementError


class NodeFacts(AgentFile, frozen=True, kw_only=True):
    """The facts that an agent found out about its node, and tells node 0 as it joins."""

    num_nodes: int
    """As its scheduler told it."""
    ranks: int
    """Ranks that it will start."""


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
