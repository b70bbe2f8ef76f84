"""How far a run has come, from the events that rank 0 writes while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hpcdist.follow.tail import TailedFile
from hpcdist.run import Run

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
            self._take(_decode(line))
        return Progress(
            attempt=self._attempt,
            epoch=self._last.get("epoch"),
            step=self._last.get("step"),
            total_steps=self._total_steps,
            loss=self._last.get("loss"),
            samples_per_s=self._samples_per_s(),
            remaining_s=self._remaining_s(),
        )

    def _start(self, attempt: int, path: Path | None = None) -> None:
        self._attempt = attempt
        self._path = path
        self._file = TailedFile(path) if path is not None else None
        self._world_size = 1
        self._total_steps: int | None = None
        self._last: dict[str, Any] = {}
        self._windows: list[tuple[float, int, int]] = []  # (wall_s, steps, samples)

    def _follow_newest_attempt(self) -> None:
        try:
            attempt = self._run.newest_attempt()
        except OSError:
            return
        path = self._run.event_file(0, max(attempt, 0))
        if path != self._path and path.exists():
            self._start(attempt, path)

    def _take(self, event: dict[str, Any]) -> None:
        match event.get("event"):
            case "start":
                self._world_size = event.get("world_size") or 1
            case "setup":
                self._total_steps = event.get("total_steps")
            case "resume":
                self._last = {"epoch": event.get("epoch"), "step": event.get("step")}
            case "steps":
                self._last = event
                window = (event.get("wall_s", 0.0), event.get("steps", 0), event.get("samples", 0))
                self._windows = [*self._windows[1 - _WINDOWS :], window]

    def _samples_per_s(self) -> float | None:
        wall_s = sum(window[0] for window in self._windows)
        samples = sum(window[2] for window in self._windows)
        return samples * self._world_size / wall_s if wall_s > 0 else None

    def _remaining_s(self) -> float | None:
        wall_s = sum(window[0] for window in self._windows)
        steps = sum(window[1] for window in self._windows)
        step: int | None = self._last.get("step")
        if not steps or step is None or self._total_steps is None:
            return None
        return max(0, self._total_steps - step) * wall_s / steps


def _decode(line: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
