"""The beginning of a run: why it waits, the nodes it starts on, and the way from each to node 0."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.base.text import listed
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Condition

MOST_SHOWN = 8
"""Nodes that are named of many."""
_A_DAY_S = 20 * 3600


class NodeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A node as its agent described it; what the agent does not know yet is None."""

    node: int
    host: str
    device: str | None = None
    """cpu or cuda."""
    gpus: list[str] = []
    """UUIDs of the GPUs of its ranks."""
    offers: list[str] = []
    """Addresses by which others may try to reach node 0."""
    address: str | None = None
    """Its own, on the way to node 0."""
    master_addr: str | None = None
    """The address by which it reached node 0."""
    interface: str | None = None
    """The interface of that way, which gloo and NCCL use."""


def seen_nodes(run: Run, *, most: int | None = None) -> list[NodeSeen]:
    """Return the nodes whose agents have started, in their order; of more than `most`, the first
    ones."""
    nodes = filter(None, map(read_node, run.agent_files()[:most]))
    return sorted(nodes, key=lambda seen: seen.node)


def read_node(path: Path) -> NodeSeen | None:
    try:
        return files.convert(files.read_json(path), NodeSeen)
    except msgspec.ValidationError:  # torn, or gone
        return None


def node_lines(nodes: Sequence[NodeSeen], *, num_nodes: int) -> list[str]:
    """Return a line per node, and of many nodes the first ones."""
    lines = []
    for seen in nodes[:MOST_SHOWN]:
        way = ", ".join(text for text in (seen.address, seen.interface) if text)
        lines.append(f"node {seen.node}: {seen.host}{f' ({way})' if way else ''}")
    more = num_nodes - len(lines)
    return [*lines, f"and {more:,} more"] if lines and more > 0 else lines


def awaited_nodes(run: Run, *, num_nodes: int) -> str | None:
    """Name the nodes whose agents node 0 still waits for in this life of the run: each writes its
    file once more when it has joined. None where it waits for none."""
    opened_s = _written_s(run.meeting_file)
    begin = run.attempts_folder / f"{max(run.newest_attempt(), 0):05d}" / "begin.json"
    if opened_s == 0.0 or _written_s(begin) >= opened_s:
        return None
    missing = [node for node in range(num_nodes) if _written_s(run.agent_file(node)) < opened_s]
    who = "the agent of" if len(missing) == 1 else "the agents of"
    return f"{who} {listed(missing, 'node')} to join" if missing else None


def _written_s(path: Path) -> float:
    """Return the time of a file by the file server's clock; 0.0 where it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def master_sentence(nodes: Sequence[NodeSeen]) -> str | None:
    """MASTER_ADDR and how it is reached; None before any node has reached it."""
    ways = dict.fromkeys(
        f"{seen.master_addr} by {seen.interface or 'an unknown interface'}"
        for seen in nodes
        if seen.master_addr is not None
    )
    return " and ".join(ways) or None


def waiting_sentence(condition: Condition) -> str | None:
    """Say why a run waits, and until when as far as the scheduler knows; None where nothing is
    known, or it does not wait."""
    if condition.state != "pending":
        return None
    start, time_s = "", condition.expected_start_s
    if time_s is not None:  # with its date if that may not be today's
        pattern = "%H:%M" if abs(time_s - time.time()) < _A_DAY_S else "%Y-%m-%d %H:%M"
        start = f"expected start {time.strftime(pattern, time.localtime(time_s))}"
    return ", ".join(text for text in (condition.reason, start) if text) or None
