"""The attempts of a run: where each went on, its steps and losses, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from statistics import median
from typing import Any

from msgspec import Struct

from hpcdist.runs.events import read_events
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict

_MOST_RANKS = 16
"""Ranks of which is read what they opened."""


class Attempt(Struct, frozen=True, kw_only=True):
    """One attempt, by the events of rank 0."""

    number: int
    verdict: Verdict | None = None
    """Why it ended."""
    resumed_step: int | None = None
    """The step of the checkpoint that a trainer went on from."""
    first_step: int | None = None
    """Steps that were done before its own first; None where it recorded none."""
    last_step: int | None = None
    losses: dict[int, float] = {}
    """By step."""
    opened: frozenset[str] = frozenset()
    """Checkpoints that a rank opened to read."""
    step_time_s: float | None = None
    start_s: float | None = None
    """Until its first step was recorded."""
    longest_gap_s: float | None = None
    """Between two steps, or before the first."""
    worked_s: float | None = None
    """From its start to its last sign of life."""
    steps_per_epoch: int | None = None

    @property
    def is_done(self) -> bool:
        """The job came to its end."""
        return self.verdict is not None and self.verdict.state == "done"


def read_attempts(run: Run) -> dict[int, Attempt]:
    """Return the attempts of a run, by number."""
    numbers = run.attempts()
    return {number: _read(run, number, is_last=number == numbers[-1]) for number in numbers} or {
        0: Attempt(number=0)
    }


def _read(run: Run, number: int, *, is_last: bool) -> Attempt:
    events = _events(run, 0, number)
    windows = [event for event in events if event["event"] == "steps" and _is_window(event)]
    resumed = next((event for event in events if event["event"] == "resume"), {})
    setup = next((event for event in events if event["event"] == "setup"), {})
    times = [event["time_s"] for event in events if event["event"] in {"start", "steps"}]
    per_step = [event["wall_s"] / event["steps"] for event in windows if event["steps"]]
    opened = {
        event["path"]
        for rank, attempt, _ in run.event_files()[:_MOST_RANKS]
        if attempt == number
        for event in _events(run, rank, number)
        if event["event"] == "opened"
    }
    verdict = run.read_attempt_verdict(number)
    return Attempt(
        number=number,
        verdict=verdict or (run.read_verdict() if is_last else None),
        resumed_step=resumed.get("step"),
        first_step=windows[0]["step"] - windows[0]["steps"] if windows else None,
        last_step=windows[-1]["step"] if windows else None,
        losses={
            event["step"]: event["loss"]
            for event in windows
            if isinstance(event.get("loss"), int | float)
        },
        opened=frozenset(opened),
        step_time_s=median(per_step) if per_step else None,
        start_s=times[1] - times[0] if len(times) > 1 else None,
        longest_gap_s=max((b - a for a, b in pairwise(times)), default=None),
        worked_s=events[-1]["time_s"] - events[0]["time_s"] if events else None,
        steps_per_epoch=setup.get("steps_per_epoch"),
    )


def _events(run: Run, rank: int, attempt: int) -> list[dict[str, Any]]:
    with suppress(OSError):
        return read_events(run.event_file(rank, attempt)).events
    return []


def _is_window(event: Mapping[str, Any]) -> bool:
    return all(isinstance(event.get(key), int | float) for key in ("step", "steps", "wall_s"))
