"""Progress of a run, its speed and the state of its ranks, from the events that they record."""

from __future__ import annotations

import math
import os
import socket
import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hpcdist.base.text import show_age
from hpcdist.machine.process import state_letter
from hpcdist.monitor.tail import EventTail
from hpcdist.runs.run import Run

_WINDOWS = 5  # the rate is taken over so many windows: steady, yet quick to show a change
_QUIET_S = 60.0
_QUIET_WINDOWS = 3
_SLOW = 1.5
_SHOWN_RANKS = 3
_MOST_RANKS = 512
"""Ranks of a run that are looked at."""
_MOST = 1e15
"""Largest number of seconds, steps or samples that counts."""
_STOPPED = ("T", "t")
"""As /proc gives the state of a process: stopped by a signal, or by a debugger."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a run; None where something is not known."""

    attempt: int
    epoch: int | None = None
    """Counted from 0."""
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    """Over all ranks; from rank 0 alone, its own rate times the world size."""
    remaining_s: float | None = None


def at_rest(progress: Progress) -> Progress:
    """Return the progress of a run whose processes are stopped: it has no speed, and no end in
    sight."""
    return msgspec.structs.replace(progress, samples_per_s=None, remaining_s=None)


class RanksSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a run's newest attempt."""

    progress: Progress
    num_alive: int
    """Ranks that have begun and not ended, of those that were looked at."""
    num_looked_at: int | None = None
    """Ranks of thousands that were looked at; None for all."""
    world_size: int
    quiet_s: float
    """Since one of them recorded something."""
    troubles: list[str]
    """Sentences for the user, one per fact."""


class _Window(NamedTuple):
    """A window of steps of one rank."""

    wall_s: float
    steps: int
    samples: int
    own_s: float
    """Without the wait for other ranks."""


class _Rank:
    """One rank of one attempt by its events, which are read as they come."""

    def __init__(self, path: Path) -> None:
        self._tail = EventTail(path)
        self._last: dict[str, int | None] = {}
        self._loss: float | None = None
        self._total_steps: int | None = None
        self._windows: deque[_Window] = deque(maxlen=_WINDOWS)
        self.world_size: int | None = None
        """None before its first event."""
        self.end_status: str | None = None
        """Status in its closing event: done, stopped, failed or killed."""
        self.host: str | None = None
        self.pid: int | None = None
        self.heard_s = -math.inf
        """When it last recorded something, by the monotonic clock."""

    def read(self, stat: os.stat_result) -> None:
        """Take in what is new in its file, whose status was just asked for."""
        is_first, newest_s = self.heard_s == -math.inf, stat.st_mtime
        for event in self._tail.events(stat.st_size):
            self._take(event)
            newest_s = max(newest_s, _number(event, "time_s"))
            self.heard_s = time.monotonic()
        if is_first:
            # The clocks of this machine, the rank's and the file server's may differ: a rank is
            # quiet by both of the others'.
            self.heard_s = time.monotonic() - max(0.0, time.time() - newest_s)

    def _take(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "start":
                self.world_size = round(_number(event, "world_size")) or 1
                self.host, self.pid = _text(event, "host"), round(_number(event, "pid")) or None
            case "setup":
                self._total_steps = round(_number(event, "total_steps")) or None
            case "resume":
                self._last = {key: _whole(event, key) for key in ("epoch", "step")}
                self._loss = None
            case "steps" if _whole(event, "step") is not None:
                self._last = {key: _whole(event, key) for key in ("epoch", "step")}
                loss = event.get("loss")  # null where it is no number any more
                self._loss = loss if isinstance(loss, int | float) else None
                window = _Window(
                    wall_s=_number(event, "wall_s"),
                    steps=round(_number(event, "steps")),
                    samples=round(_number(event, "samples")),
                    own_s=_number(event, "step_time_s", "sum")
                    - _number(event, "phases_s", "exposed_communication"),
                )
                self._windows.append(window)
            case "end":
                self.end_status = _text(event, "status") or "done"

    def progress(self, attempt: int, *, samples_per_s: float | None) -> Progress:
        """Return the progress of the run, going by this rank."""
        step, remaining_s = self._last.get("step"), None
        if (steps := self._sum("steps")) and step is not None and self._total_steps is not None:
            remaining_s = max(0, self._total_steps - step) * self._sum("wall_s") / steps
        return Progress(
            attempt=attempt,
            epoch=self._last.get("epoch"),
            step=step,
            total_steps=self._total_steps,
            loss=self._loss,
            samples_per_s=samples_per_s,
            remaining_s=remaining_s,
        )

    def samples_per_s(self) -> float | None:
        """Return the speed of this rank alone, over its newest windows."""
        wall_s = self._sum("wall_s")
        return self._sum("samples") / wall_s if wall_s > 0 else None

    def own_time_s(self) -> float | None:
        """Return the seconds per step without the wait for other ranks, over the newest windows."""
        steps = self._sum("steps")
        return self._sum("own_s") / steps if steps else None

    def window_s(self) -> float:
        """Return the length of the newest window: the next event is due after as long."""
        return self._windows[-1].wall_s if self._windows else 0.0

    def _sum(self, figure: str) -> float:
        return sum((getattr(window, figure) for window in self._windows), start=0.0)


def _number(event: Any, *keys: str) -> float:
    """Return a number within an event; 0 where there is none, as in what another version wrote, or
    one that nothing counts or takes."""
    for key in keys:
        event = event.get(key) if isinstance(event, Mapping) else None
    return event if isinstance(event, int | float) and abs(event) <= _MOST else 0


def _whole(event: Mapping[str, Any], key: str) -> int | None:
    value = event.get(key)
    return value if isinstance(value, int) and 0 <= value <= _MOST else None


def _text(event: Mapping[str, Any], key: str) -> str | None:
    value = event.get(key)
    return value if isinstance(value, str) else None


class LiveProgress:
    """Reads rank 0's events as they come; a restart begins with the new attempt's file."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._path: Path | None = None

    def read(self) -> Progress | None:
        """Return the newest figures; None before rank 0 wrote its first event."""
        with suppress(OSError):
            attempt = max(0, self._run.newest_attempt())
            path = self._run.event_file(0, attempt)
            stat = path.stat()
            if path != self._path:
                self._path, self._attempt, self._rank = path, attempt, _Rank(path)
            self._rank.read(stat)
        if self._path is None:
            return None
        own = self._rank.samples_per_s()
        whole = None if own is None else own * (self._rank.world_size or 1)
        return self._rank.progress(self._attempt, samples_per_s=whole)


class RunningRun:
    """Reads what a run's ranks record, each time only what is new; a restart begins anew.

    Of thousands of ranks some are looked at, evenly: others need the file system, too.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._attempt = 0
        self._ranks: dict[int, _Rank] = {}
        num_ranks = run.read_outline().resources.num_ranks
        step = -(-num_ranks // _MOST_RANKS)
        self._looked_at = range(0, num_ranks, step) if step > 1 else None

    def look(self) -> RanksSeen | None:
        """Return the newest figures; None before a rank wrote its first event."""
        with suppress(OSError):
            self._read()
        begun = {number: rank for number, rank in sorted(self._ranks.items()) if rank.world_size}
        if not begun:
            return None
        lowest = next(iter(begun.values()))
        world_size = lowest.world_size or 1
        # Those that have no window yet are taken to be as fast as the others.
        rates = [rate for rank in begun.values() if (rate := rank.samples_per_s()) is not None]
        rate = sum(rates) / len(rates) * world_size if rates else None
        alive = {number: rank for number, rank in begun.items() if rank.end_status is None}
        quiet_s = time.monotonic() - max(rank.heard_s for rank in self._ranks.values())
        return RanksSeen(
            progress=lowest.progress(self._attempt, samples_per_s=rate),
            num_alive=len(alive),
            num_looked_at=None if self._looked_at is None else len(self._looked_at),
            world_size=world_size,
            quiet_s=quiet_s,
            troubles=[
                *self._hang(),
                *_failed(begun),
                *_stopped(alive),
                *_quiet(begun, quiet_s),
                *_slow(begun),
            ],
        )

    def _hang(self) -> list[str]:
        hang = self._run.read_hang(self._attempt)
        return [] if hang is None else [hang.message]

    def _read(self) -> None:
        attempt = max(0, self._run.newest_attempt())
        if attempt != self._attempt:
            self._attempt, self._ranks = attempt, {}
        for number, path in self._event_files(attempt):
            with suppress(OSError):
                stat = path.stat()
                if number not in self._ranks:
                    self._ranks[number] = _Rank(path)
                self._ranks[number].read(stat)

    def _event_files(self, attempt: int) -> list[tuple[int, Path]]:
        if self._looked_at is not None:
            return [(rank, self._run.event_file(rank, attempt)) for rank in self._looked_at]
        files = self._run.event_files()
        return [(rank, path) for rank, of_attempt, path in files if of_attempt == attempt]


_Ranks = Mapping[int, _Rank]


def _quiet(ranks: _Ranks, quiet_s: float) -> list[str]:
    """Tell of ranks that have recorded nothing for long, for each by its number."""
    alive = [number for number, rank in ranks.items() if rank.end_status is None]
    limit_s = max(_QUIET_S, _QUIET_WINDOWS * max(rank.window_s() for rank in ranks.values()))
    if alive and quiet_s >= limit_s:
        return [f"its ranks have recorded nothing for {show_age(quiet_s)}"]
    now_s = time.monotonic()
    since_s = {number: now_s - ranks[number].heard_s for number in alive}
    quiet = {number: age_s for number, age_s in since_s.items() if age_s >= limit_s}
    if not quiet:
        return []
    verb, age = "has" if len(quiet) == 1 else "have", show_age(min(quiet.values()))
    return [f"{_named(quiet)} {verb} recorded nothing for {age}, while others have"]


def _failed(ranks: _Ranks) -> list[str]:
    ended = [(number, rank.end_status) for number, rank in ranks.items()]
    failed = [f"{number} ({status})" for number, status in ended if status in {"failed", "killed"}]
    return [f"ended before the others: {_named(failed)}"] if failed else []


def _stopped(alive: _Ranks) -> list[str]:
    """Tell of ranks on this machine whose processes are stopped, as by SIGSTOP or a debugger."""
    here = socket.gethostname()
    pids = {number: rank.pid for number, rank in alive.items() if rank.pid and rank.host == here}
    stopped = {number: pid for number, pid in pids.items() if state_letter(pid) in _STOPPED}
    if not stopped:
        return []
    verb, them = ("is", "it") if len(stopped) == 1 else ("are", "them")
    some = " ".join(map(str, islice(stopped.values(), _SHOWN_RANKS)))
    return [f"{_named(stopped)} {verb} stopped: kill -CONT {some} on {here} lets {them} continue"]


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
