"""The beginning of a run: why it waits, the nodes it starts on, and the way from each to node 0."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.base.text import listed
from hpcdist.monitor.screen import Screen
from hpcdist.monitor.states import setup_problem
from hpcdist.runs.run import Run
from hpcdist.schedulers import runs_here
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
    nodes = filter(None, map(_read_node, run.agent_files()[:most]))
    return sorted(nodes, key=lambda seen: seen.node)


def _read_node(path: Path) -> NodeSeen | None:
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


class Beginning:
    """Says of each life of a run each reason to wait once, and then once where the run is."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._num_nodes = run.read_outline().resources.nodes or 1
        self._last_reason: str | None = None
        self._reached: dict[Path, NodeSeen] = {}
        """The nodes that have reached node 0."""
        self._is_here = runs_here(run.read_scheduler())  # its nodes are this machine
        self._attempt = -1
        self._life = 0
        self._is_over = False

    def show(self, screen: Screen, condition: Condition) -> None:
        """Say what has become known since the last call."""
        if self._is_here:
            return
        self._look_for_life()
        if not self._is_over and self._have_all_reached():
            self._is_over, self._last_reason = True, None
            nodes = sorted(self._reached.values(), key=lambda seen: seen.node)
            listed = "; ".join(node_lines(nodes, num_nodes=len(nodes)))
            screen.say(f"started on {listed}; MASTER_ADDR {master_sentence(nodes)}")
            if problem := setup_problem(self._run):
                screen.say(f"a line of the profile's setup failed: {problem}")
        elif (waiting := waiting_sentence(condition)) not in {None, self._last_reason}:
            self._last_reason = waiting
            screen.say(f"pending: {waiting}")

    def _look_for_life(self) -> None:
        """Begin anew with another life of the run: it may be on other nodes."""
        attempt = self._run.newest_attempt()
        if attempt == self._attempt or (begun := self._run.read_beginning(attempt)) is None:
            return
        self._attempt = attempt
        if begun.life != self._life:
            self._life, self._is_over, self._reached = begun.life, False, {}

    def _have_all_reached(self) -> bool:
        """Read what agents have written that were not there yet, up to the first that still is not:
        a thousand files are not read at each look."""
        paths = self._run.agent_files()
        if len(paths) < self._num_nodes:
            return False
        for path in paths:
            if path not in self._reached:
                seen = _read_node(path)
                if seen is None or seen.master_addr is None:
                    return False
                self._reached[path] = seen
        return True


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
