"""Recording from a script's own loop, so that its steps are in the summary and its verdict.

    from hpcdist import record

    record.start()
    for images, labels in loader:
        ...
        optimizer.step()
        record.step(samples=len(images), loss=loss)
    record.evaluate(accuracy=accuracy)

A script that can go on from a checkpoint of its own stops before the time limit or a preemption:

        record.step(samples=len(images), loss=loss)
        if record.should_stop():
            save_checkpoint()
            sys.exit(record.EXIT_STOPPED)

Where the script was not started by hpcdist, the calls do nothing.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from hpcdist import rank, shield
from hpcdist.errors import EXIT_STOPPED
from hpcdist.recording import PHASES, StepRecorder

__all__ = [
    "EXIT_STOPPED",
    "evaluate",
    "finish",
    "mark",
    "shield_worker",
    "should_stop",
    "start",
    "step",
]

_recorder: StepRecorder | None = None
_is_deaf = False


def start(*, first_step: int = 0) -> None:
    """The first step begins now, or goes on after `first_step` steps of a checkpoint.

    Call it again after a pause, such as an evaluation, that belongs to no step.
    """
    global _recorder  # noqa: PLW0603 - a process is one rank, and has one loop
    context = rank.current()
    if context is None:
        return
    if _recorder is None:
        _recorder = context.recorder(first_step=first_step)
    else:
        _recorder.resume_clock()


def mark(phase: str) -> None:
    """The time since the last mark, or since the step began, was spent in `phase`.

    Phases are data_wait, host_to_device, forward_backward, exposed_communication, optimizer and
    checkpoint. Raises ValueError for another.
    """
    if phase not in PHASES:
        raise ValueError(f"{phase!r} is not a phase; phases are {', '.join(PHASES)}")
    if _recorder is not None:
        _recorder.mark(phase)


def step(*, samples: int, loss: Any = None) -> None:
    """One step with `samples` samples on this rank is finished.

    `loss` is anything that float() takes; it is read about once in a hundred steps or less.
    """
    if _recorder is None:
        start()
    if _recorder is not None:
        _recorder.step(samples=samples, loss=loss)


def should_stop() -> bool:
    """Whether to save a checkpoint now and to leave with `sys.exit(record.EXIT_STOPPED)`.

    Call it once after every step, on every rank: all ranks get True at the same step. From the
    first call on, SIGTERM and SIGINT no longer end the process, unless it has handlers of its own.
    Workers of a DataLoader that a site's signals may reach need
    `worker_init_fn=record.shield_worker`.
    """
    global _is_deaf  # noqa: PLW0603 - as above
    context = rank.current()
    if context is None or context.progress is None:
        return False
    if not _is_deaf and context.has_agent:
        _is_deaf = True
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            context.progress.ignore_sigterm()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    return context.progress.should_stop()


def shield_worker(_worker: int = 0) -> None:
    """For DataLoader's `worker_init_fn`: keep a scheduler's signals from ending the worker.

    Where the script was not started by hpcdist, nothing changes.
    """
    shield.shield_worker()


def evaluate(
    *, loss: float | None = None, accuracy: float | None = None, samples: int | None = None
) -> None:
    """An evaluation is done; `samples` over all ranks."""
    context = rank.current()
    if context is None:
        return
    context.events.write(
        "evaluate",
        step=_recorder.step_count if _recorder is not None else None,
        loss=None if loss is None else float(loss),
        accuracy=None if accuracy is None else float(accuracy),
        samples=samples,
    )
    if _recorder is not None:
        _recorder.resume_clock()


def finish() -> None:
    """Write what has not been written; called when the script has ended, well or not."""
    if _recorder is None:
        return
    try:
        _recorder.flush()
    except Exception as error:  # noqa: BLE001 - reading a loss on a broken device must not hide why
        print(f"hpcdist: the last steps were not recorded: {error!r}", file=sys.stderr)
