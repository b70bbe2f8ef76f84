"""What an agent finds on its node, and what the nodes of a run must agree on before ranks start.

A run whose nodes disagree (one sees no GPU, one belongs to another allocation, two ranks would
share a GPU) would otherwise hang until a time-out of half an hour, and say nothing of the reason.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

import msgspec

from hpcdist.machine.gpus import visible_uuids


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent found; goes to node 0 as it joins."""

    node: int
    host: str
    num_nodes: int
    """As its scheduler told it."""
    ranks: int
    """Ranks that it will start."""
    device: str
    """cpu or cuda."""
    gpus: list[str] = []
    """UUIDs of the GPUs that its ranks will use, in the order of local ranks."""
    master_addr: str = ""
    """The address by which it reached node 0."""
    interface: str | None = None
    """The interface by which it reached node 0."""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all ranks of a run."""

    master_addr: str
    device: str
    backend: str


class DisagreementError(Exception):
    """The nodes do not fit together; the message says what differs."""


def find_device(wanted: str, ranks: int, most_gpus: int | None = None) -> tuple[str, list[str]]:
    """The device of a node's ranks and the UUIDs of their GPUs, one per rank, or as many of
    `most_gpus` as there are.

    `wanted` is auto, cpu or cuda. Raises DisagreementError where GPUs are wanted or there, but
    fewer than ranks.
    """
    if wanted == "cpu":
        return "cpu", []
    gpus = visible_uuids()
    if not gpus and wanted == "auto":
        return "cpu", []
    if len(gpus) < ranks:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise DisagreementError(
            f"{len(gpus)} GPUs for {ranks} ranks (CUDA_VISIBLE_DEVICES is {shown}, NVML is asked)"
        )
    return "cuda", gpus[: most_gpus or ranks]


def agree(facts: Mapping[int, NodeFacts], backend: str) -> Agreement:
    """What holds for all nodes; `backend` is auto, gloo or nccl.

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
