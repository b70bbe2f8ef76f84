"""The wish of an agent for a profile of a rank's next steps, and the rank's report.

The wish is a word of shared memory, which the rank looks at between two steps: as long as its agent
wishes nothing it compares two numbers. rank/granting.py grants it.
"""

from __future__ import annotations

import msgspec

from hpcdist.rank.inquiry import MOST_REPORT_BYTES, Desk

_STEPS = 1 << 16


class OperationTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one operation, kernel or function, without that of what it calls."""

    name: str
    calls: int
    """Calls, or samples in which it was innermost."""
    self_s: float


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile of a few steps shows."""

    steps: int = 0
    last_step: int = 0
    """Number of finished steps at its end."""
    wall_s: float = 0.0
    """Of all these steps."""
    whole_s: float | None = None
    """Time of a step in which an operation of communication ran; None where none did."""
    overlapped_s: float | None = None
    """The part of it in which something was computed."""
    operations: list[OperationTime] = []
    """Those with the most time, on GPUs of their kernels; over all these steps."""
    trace: str | None = None
    """Its Chrome trace, relative to the run directory."""
    error: str | None = None
    """Why there is no profile, or no trace."""


def wish_for(desk: Desk, steps: int) -> int:
    """Wish for a profile of so many steps of a rank, or, with 0, for none any more; return the
    number of the wish."""
    number = desk.wishes[0] // _STEPS + 1
    desk.wishes[0] = number * _STEPS + steps
    return number


def parse_wish(wish: int) -> tuple[int, int]:
    """Return the number of a wish, and the steps that are wished for; 0: none any more."""
    return divmod(wish, _STEPS)


def leave_report(desk: Desk, number: int, report: StepReport) -> None:
    """Leave the report on a wish for the agent."""
    text = msgspec.json.encode(report)
    if len(text) > MOST_REPORT_BYTES:
        text = msgspec.json.encode(msgspec.structs.replace(report, operations=[]))
    desk.report(number, text)


def read_report(desk: Desk, number: int) -> StepReport | None:
    """Return the report on a wish; None until it is there."""
    text = desk.reported(number)
    try:
        return None if text is None else msgspec.json.decode(text, type=StepReport)
    except (msgspec.MsgspecError, UnicodeError):  # the program can write there, too
        return StepReport(error="its report cannot be read")
