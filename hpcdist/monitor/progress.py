"""Progress of a run by what its ranks record: how far they are, how fast, and who is in trouble."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base.files import open_regular
from hpcdist.base.text import show_age
from hpcdist.runs.events import decode_event
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Condition

_NUM_WINDOWS = 5
"""Windows of steps over which the pace is taken: steady, yet quick to show a change."""
_PACE_S = 15.0
"""Time without an event after which the pace is no longer that of now."""
_WORK_S = 20.0
"""Ranks that have recorded something within this time are at work, whatever the scheduler says."""
_QUIET_S = 60.0
_QUIET_WINDOWS = 3
_SLOW = 1.5
_SHOWN_RANKS = 3
_MOST_RANKS = 512
_MOST = 1e15
"""Largest number of seconds, steps or samples that counts."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a run; None where something is not known."""

    attempt: int
    epoch: int | None = None
    """Counted from 0."""
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    """Over all ranks. None, as the time below, where the ranks do nothing now."""
    remaining_s: float | None = None


class RanksSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a run's newest attempt."""

    progress: Progress
    num_alive: int
    """Ranks that have begun and not ended, of those that were looked at."""
    num_looked_at: int | None = None
    """Ranks of thousands that were looked at; None for all."""
    world_size: int
    is_at_work: bool
    """One of them recorded something a moment ago, and their attempt has not ended."""
    troubles: list[str]
    """Sentences for the user, one per fact."""


class RunningRun:
    """Reads what a run's ranks record, each time only what is new; a restart begins anew.

    Of thousands of ranks some are looked at, evenly: others need the file system, too.
    """

    def __init__(self, run: Run, *, most_ranks: int = _MOST_RANKS) -> None:
        self._run = run
        self._attempt = 0
        self._ranks: dict[int, _Rank] = {}
        num_ranks = run.read_outline().num_ranks
        self._looked_at = range(0, num_ranks, -(-num_ranks // most_ranks))

    def look(self, condition: Condition) -> RanksSeen | None:
        """Return the newest figures; None before a rank wrote its first event. A run that waits or
        is suspended has no pace, nor one whose ranks have fallen silent."""
        with suppress(OSError):
            self._read()
        begun = {number: rank for number, rank in sorted(self._ranks.items()) if rank.world_size}
        if not begun:
            return None
        alive = {number: rank for number, rank in begun.items() if rank.end_status is None}
        lowest = next(iter(begun.values()))
        world_size = lowest.world_size or 1
        quiet_s = time.monotonic() - max(rank.heard_s for rank in begun.values())
        is_at_work = bool(alive) and quiet_s < _WORK_S
        if condition.state == "pending":  # a requeue leaves ranks that have not said their end
            is_at_work = is_at_work and not self._has_ended()
        is_silent = bool(alive) and quiet_s > max(_PACE_S, _QUIET_WINDOWS * lowest.window_s())
        waits = condition.state == "pending" and not is_at_work
        # Ranks that have no window yet are taken to be as fast as the others.
        rates = [rate for rank in begun.values() if (rate := rank.samples_per_s()) is not None]
        rate = sum(rates) / len(rates) * world_size if rates else None
        has_pace = not (is_silent or waits or condition.is_suspended)
        return RanksSeen(
            progress=Progress(
                attempt=self._attempt,
                **lowest.place,
                total_steps=lowest.total_steps,
                samples_per_s=rate if has_pace else None,
                remaining_s=lowest.remaining_s() if has_pace else None,
            ),
            num_alive=len(alive),
            num_looked_at=len(self._looked_at) if self._looked_at.step > 1 else None,
            world_size=world_size,
            is_at_work=is_at_work,
            troubles=[*_failed(begun), *_quiet(alive, quiet_s), *_slow(begun)],
        )

    def _read(self) -> None:
        attempt = max(0, self._run.newest_attempt())
        if attempt != self._attempt:
            self._attempt, self._ranks = attempt, {}
        for number in self._looked_at:
            path = self._run.event_file(number, attempt)
            with suppress(OSError):
                stat = path.stat()
                if number not in self._ranks:
                    self._ranks[number] = _Rank(path)
                self._ranks[number].read(stat)

    def _has_ended(self) -> bool:
        """Return whether the newest attempt has a verdict: its ranks were ended, and wrote none."""
        with suppress(OSError):
            return self._run.read_attempt_verdict(self._attempt) is not None
        return False


class _Rank:
    """One rank of one attempt, by the first and the newest of its events."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = -1
        self._windows: deque[Mapping[str, Any]] = deque(maxlen=_NUM_WINDOWS)
        self.place: dict[str, Any] = {}
        """Epoch, step and loss, as Progress has them."""
        self.total_steps: int | None = None
        self.world_size: int | None = None
        """None before its first event."""
        self.end_status: str | None = None
        """Status in its closing event: done, stopped, failed or killed."""
        self.heard_s = -math.inf
        """When it last recorded something, by the monotonic clock."""

    def read(self, stat: os.stat_result) -> None:
        """Take in its file, whose status was just asked for. One that is no longer than before is
        not opened: that costs more than all else, on a shared file system above all."""
        if stat.st_size == self._size:
            return
        is_first, self._size, newest_s = self._size < 0, stat.st_size, stat.st_mtime
        self._windows.clear()
        for event in _first_and_newest_events(self._path, stat.st_size):
            self._take(event)
            newest_s = max(newest_s, _number(event, "time_s"))
        # The clocks of this machine, the rank's and the file server's may differ: at first a rank
        # is quiet by both of the others'.
        age_s = max(0.0, time.time() - newest_s) if is_first else 0.0
        self.heard_s = time.monotonic() - age_s

    def _take(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "start":
                self.world_size = round(_number(event, "world_size")) or 1
            case "setup":
                self.total_steps = round(_number(event, "total_steps")) or None
            case "resume":
                self.place = {"epoch": _whole(event, "epoch"), "step": _whole(event, "step")}
            case "steps" if (step := _whole(event, "step")) is not None:
                loss = event.get("loss")  # null where it is no number any more
                loss = loss if isinstance(loss, int | float) else None
                self.place = {"epoch": _whole(event, "epoch"), "step": step, "loss": loss}
                self._windows.append(event)
            case "end":
                status = event.get("status")
                self.end_status = status if isinstance(status, str) else "done"

    def remaining_s(self) -> float | None:
        """Return the time to its last step, at the pace of its newest windows."""
        step: int | None = self.place.get("step")
        steps = self._sum("steps")
        if not steps or step is None or self.total_steps is None:
            return None
        return max(0, self.total_steps - step) * self._sum("wall_s") / steps

    def samples_per_s(self) -> float | None:
        """Return the speed of this rank alone, over its newest windows."""
        wall_s = self._sum("wall_s")
        return self._sum("samples") / wall_s if wall_s > 0 else None

    def own_time_s(self) -> float | None:
        """Return the seconds per step without the wait for other ranks, over the newest windows."""
        steps = self._sum("steps")
        waited_s = self._sum("phases_s", "exposed_communication")
        return (self._sum("step_time_s", "sum") - waited_s) / steps if steps else None

    def window_s(self) -> float:
        """Return the length of the newest window: the next event is due after as long."""
        return _number(self._windows[-1], "wall_s") if self._windows else 0.0

    def _sum(self, *keys: str) -> float:
        return sum((_number(window, *keys) for window in self._windows), start=0.0)


def _number(event: Any, *keys: str) -> float:
    """Return a number within an event; 0 where there is none, as in what another version wrote, or
    one that nothing counts or takes."""
    for key in keys:
        event = event.get(key) if isinstance(event, Mapping) else None
    return event if isinstance(event, int | float) and abs(event) <= _MOST else 0


def _whole(event: Mapping[str, Any], key: str) -> int | None:
    value = event.get(key)
    return value if isinstance(value, int) and 0 <= value <= _MOST else None


_Ranks = Mapping[int, _Rank]


def _quiet(alive: _Ranks, quiet_s: float) -> list[str]:
    """Name ranks that have recorded nothing for long."""
    if not alive:
        return []
    limit_s = max(_QUIET_S, _QUIET_WINDOWS * max(rank.window_s() for rank in alive.values()))
    if quiet_s >= limit_s:
        return [f"its ranks have recorded nothing for {show_age(quiet_s)}"]
    now_s = time.monotonic()
    ages_s = {number: now_s - rank.heard_s for number, rank in alive.items()}
    quiet = {number: age_s for number, age_s in ages_s.items() if age_s >= limit_s}
    if not quiet:
        return []
    verb, age = "has" if len(quiet) == 1 else "have", show_age(min(quiet.values()))
    return [f"{_named(quiet)} {verb} recorded nothing for {age}, while others have"]


def _failed(ranks: _Ranks) -> list[str]:
    ended = [(number, rank.end_status) for number, rank in ranks.items()]
    failed = [f"{number} ({status})" for number, status in ended if status in {"failed", "killed"}]
    return [f"ended before the others: {_named(failed)}"] if failed else []


def _slow(ranks: _Ranks) -> list[str]:
    """Name the slowest rank, where the others wait for it long."""
    times = {number: time_s for number, rank in ranks.items() if (time_s := rank.own_time_s())}
    if len(times) < 2:
        return []
    slowest = max(times, key=times.__getitem__)
    ratio = times[slowest] / sorted(times.values())[(len(times) - 1) // 2]
    if ratio < _SLOW:
        return []
    return [f"rank {slowest} is slow: its own part of a step takes {ratio:.1f} times as long"]


def _named(ranks: Collection[object]) -> str:
    """`rank 3`, `ranks 1, 2, 3 and 4 more`."""
    listed = ", ".join(map(str, islice(ranks, _SHOWN_RANKS)))
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed}{more}"


_HEAD_BYTES = 1 << 12  # the first events: start, model, setup, resume
_TAIL_BYTES = 1 << 13  # some five windows of steps


def _first_and_newest_events(path: Path, size: int) -> Iterator[Mapping[str, Any]]:
    """Give the events at the begin and at the end of a file. A line that is cut is no event."""
    try:
        with open_regular(path, most_bytes=math.inf) as file:
            text = file.read(_HEAD_BYTES + _TAIL_BYTES)
            if size > len(text):
                file.seek(size - _TAIL_BYTES)
                text = text[:_HEAD_BYTES] + b"\n" + file.read(_TAIL_BYTES)
    except OSError:  # gone, or not ours to read
        return
    for line in text.split(b"\n"):
        if (event := decode_event(line)) is not None:
            yield event
