"""Progress of a run, its speed and the state of its ranks, from the events that they record."""

from __future__ import annotations

import math
import os
import socket
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hpcdist.base.text import show_age
from hpcdist.machine.process import state_letter
from hpcdist.monitor.tail import EventTail, TailedFile
from hpcdist.runs.events import decode_event
from hpcdist.runs.run import Run, place_of_events

_WINDOWS = 5  # the rate is taken over so many windows: steady, yet quick to show a change


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a run; None where something is not known."""

    attempt: int
    epoch: int | None = None
    """Counted from 0."""
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    """Over all ranks, as rank 0's own rate times the world size."""
    remaining_s: float | None = None


class _Window(NamedTuple):
    """A window of steps of one rank."""

    wall_s: float
    steps: int
    samples: int
    own_s: float
    """Without the wait for other ranks."""


class RankEvents:
    """The state of one rank by its events so far; they may be given from any place on."""

    def __init__(self) -> None:
        self.world_size: int | None = None
        self.end_status: str | None = None
        """Of its closing event: done, stopped, failed or killed."""
        self.host: str | None = None
        self.pid: int | None = None
        self._total_steps: int | None = None
        self._last: dict[str, Any] = {}
        self._windows: deque[_Window] = deque(maxlen=_WINDOWS)

    def take(self, event: Mapping[str, Any]) -> None:
        """Take the next event in."""
        match event.get("event"):
            case "start":
                self.world_size = round(_number(event, "world_size")) or 1
                self.host, self.pid = event.get("host"), round(_number(event, "pid")) or None
            case "setup":
                self._total_steps = round(_number(event, "total_steps")) or None
            case "resume":
                self._last = {"epoch": event.get("epoch"), "step": event.get("step")}
            case "steps" if isinstance(event.get("step"), int):
                self._last = dict(event)
                self._windows.append(_window(event))
            case "end":
                self.end_status = event.get("status") or "done"

    def progress(self, attempt: int, *, samples_per_s: float | None) -> Progress:
        """Return the progress of the run, going by this rank."""
        return Progress(
            attempt=attempt,
            epoch=self._last.get("epoch"),
            step=self._last.get("step"),
            total_steps=self._total_steps,
            loss=self._last.get("loss"),
            samples_per_s=samples_per_s,
            remaining_s=self._remaining_s(),
        )

    def samples_per_s(self) -> float | None:
        """Return the speed of this rank alone, over its newest windows."""
        wall_s = sum(window.wall_s for window in self._windows)
        samples = sum(window.samples for window in self._windows)
        return samples / wall_s if wall_s > 0 else None

    def own_time_s(self) -> float | None:
        """Return the seconds per step without the wait for other ranks, over the newest windows."""
        steps = sum(window.steps for window in self._windows)
        return sum(window.own_s for window in self._windows) / steps if steps else None

    def window_s(self) -> float:
        """Return the length of the newest window: the next event is due after as long."""
        return self._windows[-1].wall_s if self._windows else 0.0

    def _remaining_s(self) -> float | None:
        wall_s = sum(window.wall_s for window in self._windows)
        steps = sum(window.steps for window in self._windows)
        step: int | None = self._last.get("step")
        if not steps or step is None or self._total_steps is None:
            return None
        return max(0, self._total_steps - step) * wall_s / steps


class LiveProgress:
    """Reads rank 0's events as they come; a restart begins with the new attempt's file."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._path: Path | None = None
        self._start(0)

    def read(self) -> Progress | None:
        """Return the newest figures; None before rank 0 wrote its first event."""
        self._follow_newest_attempt()
        if self._file is None:
            return None
        for line in self._file.lines():
            self._events.take(decode_event(line) or {})
        own = self._events.samples_per_s()
        whole = None if own is None else own * (self._events.world_size or 1)
        return self._events.progress(self._attempt, samples_per_s=whole)

    def _start(self, attempt: int, path: Path | None = None) -> None:
        self._attempt = attempt
        self._path = path
        self._file = TailedFile(path) if path is not None else None
        self._events = RankEvents()

    def _follow_newest_attempt(self) -> None:
        try:
            attempt = self._run.newest_attempt()
        except OSError:
            return
        path = self._run.event_file(0, max(attempt, 0))
        if path != self._path and path.exists():
            self._start(attempt, path)


def _window(event: Mapping[str, Any]) -> _Window:
    stepping_s = _number(event, "step_time_s", "sum")
    return _Window(
        wall_s=_number(event, "wall_s"),
        steps=round(_number(event, "steps")),
        samples=round(_number(event, "samples")),
        own_s=stepping_s - _waited_s(event),
    )


def _waited_s(event: Mapping[str, Any]) -> float:
    """Return the wait for other ranks; in the events of schema 1 a phase has more figures than its
    sum."""
    phase = ("phases_s", "exposed_communication")
    return _number(event, *phase) or _number(event, *phase, "sum")


def _number(event: Any, *keys: str) -> float:
    """Return a number within an event; 0 where there is none, as in what another version wrote."""
    for key in keys:
        event = event.get(key) if isinstance(event, Mapping) else None
    return event if isinstance(event, int | float) else 0


_QUIET_S = 60.0
_QUIET_WINDOWS = 3
_SLOW = 1.5
_SHOWN_RANKS = 3
_STOPPED = ("T", "t")
"""As /proc gives the state of a process: stopped by a signal, or by a debugger."""


class RanksSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a run's newest attempt."""

    progress: Progress
    num_alive: int
    """Ranks that have begun and not ended."""
    world_size: int
    quiet_s: float
    """Since one of them recorded something."""
    troubles: list[str]
    """What a user should know, a sentence each."""


class RunningRun:
    """Reads what a run's ranks record, each time only what is new; a restart begins anew."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._begin(0)

    def look(self) -> RanksSeen | None:
        """Return the newest figures; None before a rank wrote its first event."""
        self._begin_newest_attempt()
        for rank, file in self._files():
            self._take(rank, file)
        begun = {rank: events for rank, events in sorted(self._ranks.items()) if events.world_size}
        if not begun:
            return None
        lowest = next(iter(begun.values()))
        alive = [rank for rank, events in begun.items() if events.end_status is None]
        return RanksSeen(
            progress=lowest.progress(self._attempt, samples_per_s=_samples_per_s(begun)),
            num_alive=len(alive),
            world_size=lowest.world_size or 1,
            quiet_s=self._quiet_s(),
            troubles=[
                *_failed(begun),
                *_stopped({rank: begun[rank] for rank in alive}),
                *self._quiet(begun, alive),
                *_slow(begun),
            ],
        )

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._tails: dict[int, EventTail] = {}
        self._ranks: dict[int, RankEvents] = {}
        self._heard_s: dict[int, float] = {}
        """By rank, when it last recorded something: monotonic clock."""

    def _begin_newest_attempt(self) -> None:
        try:
            attempt = max(0, self._run.newest_attempt())
        except OSError:
            return
        if attempt != self._attempt:
            self._begin(attempt)

    def _files(self) -> Iterator[tuple[int, os.DirEntry[str]]]:
        """(rank, file) of the attempt."""
        try:
            with os.scandir(self._run.events_folder) as entries:
                for entry in entries:
                    place = place_of_events(entry.name)
                    if place is not None and place[1] == self._attempt:
                        yield place[0], entry
        except OSError:
            return

    def _take(self, rank: int, file: os.DirEntry[str]) -> None:
        try:
            stat = file.stat()
        except OSError:
            return
        if rank not in self._tails:
            self._tails[rank] = EventTail(self._run.event_file(rank, self._attempt))
            self._ranks[rank] = RankEvents()
            # The clocks of this machine and of the file system may differ.
            self._hear(rank, age_s=max(0.0, time.time() - stat.st_mtime))
        is_first = self._ranks[rank].world_size is None
        for event in self._tails[rank].events(stat.st_size):
            self._ranks[rank].take(event)
            if not is_first:
                self._hear(rank, age_s=0.0)

    def _hear(self, rank: int, *, age_s: float) -> None:
        self._heard_s[rank] = max(self._heard_s.get(rank, -math.inf), time.monotonic() - age_s)

    def _quiet_s(self) -> float:
        """Return the seconds since any rank recorded something."""
        return time.monotonic() - max(self._heard_s.values(), default=time.monotonic())

    def _quiet(self, ranks: Mapping[int, RankEvents], alive: list[int]) -> list[str]:
        quiet_s = self._quiet_s()
        window_s = max(events.window_s() for events in ranks.values())
        limit_s = max(_QUIET_S, _QUIET_WINDOWS * window_s)
        if alive and quiet_s >= limit_s:
            return [f"its ranks have recorded nothing for {show_age(quiet_s)}"]
        now_s = time.monotonic()
        since_s = {rank: now_s - self._heard_s[rank] for rank in alive}
        quiet = [rank for rank in alive if since_s[rank] >= limit_s]
        if not quiet:
            return []
        least_s = min(since_s[rank] for rank in quiet)
        verb = "has" if len(quiet) == 1 else "have"
        return [
            f"{_named(quiet)} {verb} recorded nothing for {show_age(least_s)}, while others have"
        ]


def _samples_per_s(ranks: Mapping[int, RankEvents]) -> float | None:
    """Return the speed of all ranks; those that have no window yet are taken to be as fast as the
    others."""
    world_size = next(iter(ranks.values())).world_size or 1
    rates = [rate for events in ranks.values() if (rate := events.samples_per_s()) is not None]
    return sum(rates) / len(rates) * world_size if rates else None


def _failed(ranks: Mapping[int, RankEvents]) -> list[str]:
    ended = [(rank, events.end_status) for rank, events in ranks.items()]
    failed = [f"{rank} ({status})" for rank, status in ended if status in {"failed", "killed"}]
    if not failed:
        return []
    return [f"ended before the others: {_named(failed)}"]


def _stopped(alive: Mapping[int, RankEvents]) -> list[str]:
    """Ranks on this machine whose processes are stopped, as by SIGSTOP or a debugger."""
    here = socket.gethostname()
    pids = {
        rank: events.pid for rank, events in alive.items() if events.pid and events.host == here
    }
    stopped = {rank: pid for rank, pid in pids.items() if state_letter(pid) in _STOPPED}
    if not stopped:
        return []
    verb, them = ("is", "it") if len(stopped) == 1 else ("are", "them")
    some = " ".join(map(str, islice(stopped.values(), _SHOWN_RANKS)))
    return [f"{_named(stopped)} {verb} stopped: kill -CONT {some} on {here} lets {them} go on"]


def _named(ranks: Collection[object]) -> str:
    """`rank 3`, `ranks 1, 2, 3 and 4 more`."""
    listed = ", ".join(map(str, islice(ranks, _SHOWN_RANKS)))
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed}{more}"


def _slow(ranks: Mapping[int, RankEvents]) -> list[str]:
    """Name the slowest rank, where the others wait for it long."""
    times = {rank: time_s for rank, events in ranks.items() if (time_s := events.own_time_s())}
    if len(times) < 2:
        return []
    slowest = max(times, key=times.__getitem__)
    middle_s = sorted(times.values())[(len(times) - 1) // 2]
    ratio = times[slowest] / middle_s
    if ratio < _SLOW:
        return []
    return [f"rank {slowest} is slow: its own part of a step takes {ratio:.1f} times as long"]
