"""The nodes of a run and the way from each to node 0, as their agents found it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hpcdist.base import files
from hpcdist.runs.run import Run

_SHOWN = 8


class NodeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent of one node said; what it does not know yet is None."""

    node: int
    host: str
    device: str | None = None
    """cpu or cuda."""
    gpus: list[str] = []
    """UUIDs of the GPUs of its ranks."""
    offers: list[str] = []
    """Of node 0: the addresses by which others may try to reach it."""
    address: str | None = None
    """Its own, on the way to node 0."""
    master_addr: str | None = None
    """The address by which it reached node 0."""
    interface: str | None = None
    """The interface of that way, which gloo and NCCL use."""


def seen_nodes(run: Run) -> list[NodeSeen]:
    """The nodes whose agents have started, in their order."""
    values = (files.read_json(path) for path in run.launch_folder.glob("agent-*.json"))
    found = [seen for value in values if (seen := _convert(value)) is not None]
    return sorted(found, key=lambda seen: seen.node)


def node_lines(nodes: Sequence[NodeSeen]) -> list[str]:
    """One line per node, and of many nodes the first ones."""
    lines = [_line(seen) for seen in nodes[:_SHOWN]]
    more = len(nodes) - len(lines)
    return [*lines, f"and {more} more"] if more else lines


def master_sentence(nodes: Sequence[NodeSeen]) -> str | None:
    """MASTER_ADDR and how it is reached; None before any node has reached it."""
    ways = dict.fromkeys(
        f"{seen.master_addr} by {seen.interface or 'an unknown interface'}"
        for seen in nodes
        if seen.master_addr is not None
    )
    return " and ".join(ways) or None


def _line(seen: NodeSeen) -> str:
    way = ", ".join(text for text in (seen.address, seen.interface) if text)
    return f"node {seen.node}: {seen.host}{f' ({way})' if way else ''}"


def _convert(value: Any) -> NodeSeen | None:
    try:
        return msgspec.convert(value, NodeSeen)
    except msgspec.ValidationError:
        return None  # torn, or gone
