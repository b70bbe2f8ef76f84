"""How far a run has come, from the events that rank 0 writes while it trains."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hpcdist.monitor.follow.tail import TailedFile
from hpcdist.runs.events import decode_event
from hpcdist.runs.run import Run

_WINDOWS = 5  # the rate is taken over so many windows: steady, yet quick to show a change


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run has come; None where that is not known."""

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
    """What the events of one rank say so far; they may be given from any place on."""

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
        """How far the run is, going by this rank."""
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
        """Of this rank alone, over its newest windows."""
        wall_s = sum(window.wall_s for window in self._windows)
        samples = sum(window.samples for window in self._windows)
        return samples / wall_s if wall_s > 0 else None

    def own_time_s(self) -> float | None:
        """Seconds per step without the wait for other ranks, over the newest windows."""
        steps = sum(window.steps for window in self._windows)
        return sum(window.own_s for window in self._windows) / steps if steps else None

    def window_s(self) -> float:
        """How long the newest window took: the next event is to be expected after as long."""
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
        """The newest figures; None before rank 0 wrote its first event."""
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
    """For other ranks; in the events of schema 1 a phase has more figures than its sum."""
    phase = ("phases_s", "exposed_communication")
    return _number(event, *phase) or _number(event, *phase, "sum")


def _number(event: Any, *keys: str) -> float:
    """A number within an event; 0 where there is none, as in what another version wrote."""
    for key in keys:
        event = event.get(key) if isinstance(event, Mapping) else None
    return event if isinstance(event, int | float) else 0
