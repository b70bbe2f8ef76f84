"""The way of a run: why it waits, its nodes and how they reach node 0, and how far it is and how
fast, by what its first rank records."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base import files
from hpcdist.base.text import listed
from hpcdist.runs.events import decode_event
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Condition

_MOST_SHOWN = 8
"""Nodes that are named of many."""
_NUM_WINDOWS = 5
"""Windows of steps over which the pace is taken: steady, yet quick to show a change."""
_PACE_S = 15.0
"""Time without an event after which the pace is no longer that of now."""
_QUIET_WINDOWS = 3
_MOST = 1e15
"""Largest number of seconds, steps or samples that counts."""
_HEAD_BYTES = 1 << 12  # the first events: start, model, setup, resume
_TAIL_BYTES = 1 << 13  # some five windows of steps


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a run's newest attempt; None where something is not known."""

    attempt: int
    epoch: int | None = None
    """Counted from 0."""
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    """Over all ranks, as if all were as fast. None, as the time below, where it does nothing."""
    remaining_s: float | None = None

    def sentence(self, *, with_pace: bool) -> str:
        """Say where the run is, and how fast: epoch 3, step 120/400, 3,412 samples/s, 1:02 left."""
        total = "" if self.total_steps is None else f"/{self.total_steps}"
        place = [
            f"attempt {self.attempt}" if self.attempt else "",
            "" if self.epoch is None else f"epoch {self.epoch + 1}",
            "" if self.step is None else f"step {self.step}{total}",
        ]
        pace = [
            "" if self.samples_per_s is None else f"{self.samples_per_s:,.0f} samples/s",
            "" if self.loss is None else f"loss {self.loss:.4g}",
            "" if self.remaining_s is None else f"{show_clock(self.remaining_s)} left",
        ]
        return ", ".join(filter(None, place + pace if with_pace else place))


class RunningRun:
    """Reads what a run's first rank records, when there is more of it; a restart begins anew.

    One file is looked at, however many ranks there are: they need the file system more.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._attempt = self._size = -1
        self._heard_s = 0.0
        """When the rank last recorded something, by the monotonic clock."""

    def look(self, condition: Condition) -> Progress | None:
        """Return the newest figures; None before the rank wrote its first event. A run that waits
        or is suspended has no pace, nor one whose rank has fallen silent."""
        with suppress(OSError):
            self._read()
        if self._size < 0 or not self._world_size:
            return None
        window_s = _number(self._windows[-1], "wall_s") if self._windows else 0.0
        quiet_s = time.monotonic() - self._heard_s
        is_silent = not self._has_ended and quiet_s > max(_PACE_S, _QUIET_WINDOWS * window_s)
        has_pace = not (is_silent or condition.state == "pending" or condition.is_suspended)
        steps, samples, wall_s = (
            sum(_number(window, key) for window in self._windows)
            for key in ("steps", "samples", "wall_s")
        )
        has_rate = has_pace and steps > 0 and wall_s > 0
        to_do = None if self._total is None else self._total - self._place.get("step", 0)
        return Progress(
            attempt=self._attempt,
            **self._place,
            total_steps=self._total,
            samples_per_s=samples / wall_s * self._world_size if has_rate else None,
            remaining_s=max(0, to_do) * wall_s / steps if has_rate and to_do is not None else None,
        )

    def _read(self) -> None:
        """Read the file if it has grown: to open it costs more than all else, on a shared file
        system above all."""
        attempt = max(0, self._run.newest_attempt())
        if attempt != self._attempt:
            self._attempt, self._size = attempt, -1
        path = self._run.event_file(0, attempt)
        stat = path.stat()
        if stat.st_size == self._size:
            return
        is_first, newest_s = self._size < 0, stat.st_mtime
        self._windows: deque[Mapping[str, Any]] = deque(maxlen=_NUM_WINDOWS)
        self._world_size, self._has_ended = 0, False
        self._place: dict[str, Any] = {}
        self._total: int | None = None
        with files.open_regular(path, most_bytes=math.inf) as file:
            text = file.read(_HEAD_BYTES + _TAIL_BYTES)
            if stat.st_size > len(text):
                file.seek(stat.st_size - _TAIL_BYTES)
                text = text[:_HEAD_BYTES] + b"\n" + file.read(_TAIL_BYTES)
        # A line that is cut is no event.
        for event in filter(None, map(decode_event, text.split(b"\n"))):
            newest_s = max(newest_s, _number(event, "time_s"))
            match event["event"]:
                case "start":
                    self._world_size = int(_number(event, "world_size")) or 1
                case "setup":
                    self._total = int(_number(event, "total_steps")) or None
                case "resume" | "steps" as kind if isinstance(event.get("step"), int):
                    epoch, loss = event.get("epoch"), event.get("loss")
                    self._place = {
                        "step": int(_number(event, "step")),
                        "epoch": epoch if isinstance(epoch, int) else None,
                        "loss": loss if isinstance(loss, int | float) else None,
                    }
                    if kind == "steps":
                        self._windows.append(event)
                case "end":
                    self._has_ended = True
        self._size = stat.st_size
        # The clocks of this machine, the rank's and the file server's may differ: at first a rank
        # is quiet by both of the others'.
        self._heard_s = time.monotonic() - (max(0.0, time.time() - newest_s) if is_first else 0.0)


def _number(event: Mapping[str, Any], key: str) -> float:
    """Return a number within an event; 0 where there is none, or one that nothing counts."""
    value = event.get(key)
    return value if isinstance(value, int | float) and 0 <= value <= _MOST else 0


def show_clock(seconds: float) -> str:
    """Return a length of time as text: 1:02, or with hours 1:00:02."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


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
    found = (files.read_as(path, NodeSeen) for path in run.agent_files()[:most])
    return sorted(filter(None, found), key=lambda seen: seen.node)


def describe_nodes(run: Run) -> tuple[list[str], str | None]:
    """Return a line for each node whose agent has started, of many for the first ones, and
    MASTER_ADDR and how it is reached, which is None before any node has reached it."""
    lines, ways = [], []
    for seen in seen_nodes(run, most=_MOST_SHOWN):
        way = ", ".join(filter(None, (seen.address, seen.interface)))
        lines.append(f"node {seen.node}: {seen.host}{f' ({way})' if way else ''}")
        if seen.master_addr is not None:
            ways.append(f"{seen.master_addr} (interface {seen.interface or 'not known'})")
    if lines and (more := len(run.agent_files()) - len(lines)) > 0:
        lines.append(f"and {more:,} more")
    return lines, " and ".join(dict.fromkeys(ways)) or None


def awaited_nodes(run: Run, *, num_nodes: int) -> str | None:
    """Name the nodes whose agents node 0 still waits for in this life of the run: each writes its
    file once more when it has joined. None where it waits for none."""

    def written_s(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:
            return 0.0

    opened_s = written_s(run.meeting_file)
    begin = run.attempt_file(max(run.newest_attempt(), 0), "begin.json")
    if opened_s == 0.0 or written_s(begin) >= opened_s:
        return None
    missing = [node for node in range(num_nodes) if written_s(run.agent_file(node)) < opened_s]
    who = "the agent of" if len(missing) == 1 else "the agents of"
    return f"{who} {listed(missing, 'node')} to join" if missing else None


def waiting_sentence(condition: Condition) -> str | None:
    """Say why a run waits; None where nothing is known, or it does not wait."""
    return condition.reason if condition.state == "pending" else None
