"""Recording from a loop that is not hpcdist's own: the functions of hpcdist.record."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hpcdist.rank import context as rank
from hpcdist.rank import exit as rank_exit
from hpcdist.rank.recorder import PHASES, StepRecorder

if TYPE_CHECKING:
    from torch import nn

    from hpcdist.rank.timing import WatchedTimer

_Batch = TypeVar("_Batch")


@dataclass
class _Loop:
    """The loop of this process: a rank has one."""

    timer: StepRecorder | WatchedTimer
    num_steps: int
    """Finished in all, those before a checkpoint included."""


_loop: _Loop | None = None
_is_deaf = False


def start(*, first_step: int = 0, model: nn.Module | None = None) -> None:
    """Begin the first step now, or the one after `first_step` steps of a checkpoint.

    With `model`, a torch model that computes on this rank's device, the phases forward_backward,
    exposed_communication (with several ranks) and optimizer are seen by hooks: leave out `mark` for
    these. On a GPU they are timed by the GPU's own clock. What the loop does between backward() and
    the optimizer's step counts as communication, but for a single rank.

    Call it again after a pause, such as an evaluation, that belongs to no step.
    """
    global _loop  # noqa: PLW0603 - a process is one rank, and has one loop
    context = rank.current()
    if context is None:
        return
    if _loop is None:
        timer: StepRecorder | WatchedTimer
        if model is None:
            timer = context.recorder(first_step=first_step)
        else:
            from hpcdist.rank.timing import WatchedTimer

            timer = WatchedTimer(context, model, first_step=first_step)
        _loop = _Loop(timer=timer, num_steps=first_step)
    _loop.timer.begin()


def batches(loader: Iterable[_Batch]) -> Iterator[_Batch]:
    """Yield the batches of a loader; the wait for each is the phase data_wait of its step.

    The first step begins here unless `start` was called; a pause before, such as an evaluation,
    belongs to no step.
    """
    start()
    for batch in loader:
        mark("data_wait")
        yield batch


def mark(phase: str) -> None:
    """Note that the time since the last mark, or since the step began, was spent in `phase`.

    Phases are data_wait, host_to_device, forward_backward, exposed_communication, optimizer and
    checkpoint. Raises ValueError for another.
    """
    if phase not in PHASES:
        raise ValueError(f"{phase!r} is not a phase; phases are {', '.join(PHASES)}")
    if _loop is not None:
        _loop.timer.mark(phase)


def step(*, samples: int, loss: Any = None) -> None:
    """Finish a step with `samples` samples on this rank.

    `loss` is anything that float() takes; it is read about once in a hundred steps or less.
    """
    if _loop is None:
        start()
    if _loop is not None:
        _loop.num_steps += 1
        # The graph behind a loss must not live on until it is read, nor be warned of then.
        detached = loss.detach() if hasattr(loss, "detach") else loss
        _loop.timer.step(samples=samples, loss=detached)


def should_stop() -> bool:
    """Return True where a checkpoint must be saved now, before `sys.exit(record.EXIT_STOPPED)`.

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
    """Keep a scheduler's signals from ending a worker, as DataLoader's `worker_init_fn`.

    Where the script was not started by hpcdist, nothing changes.
    """
    rank_exit.shield_worker()


def evaluate(
    *, loss: float | None = None, accuracy: float | None = None, samples: int | None = None
) -> None:
    """Record an evaluation; `accuracy` is a share from 0 to 1, `samples` are over all ranks."""
    context = rank.current()
    if context is None:
        return
    if _loop is not None:
        _loop.timer.wait()
    if accuracy is not None and not 0 <= float(accuracy) <= 1:
        # A percentage, perhaps: a training must not end for that.
        print(f"warning: record.evaluate: accuracy is {float(accuracy):g}", file=sys.stderr)
        context.note(
            "record.evaluate: accuracy must be a share from 0 to 1; what is not is left out"
        )
        accuracy = None
    context.events.write(
        "evaluate",
        step=_loop.num_steps if _loop is not None else None,
        loss=None if loss is None else float(loss),
        accuracy=None if accuracy is None else float(accuracy),
        samples=None if samples is None else int(samples),
    )
    if _loop is not None:
        _loop.timer.begin()


def forget() -> None:
    """Forget the loop, in a process that a rank has forked: its steps are not the rank's."""
    global _loop  # noqa: PLW0603 - as above
    _loop = None


def finish() -> None:
    """Write what has not been written; called when the script has ended, well or not."""
    if _loop is None:
        return
    try:
        _loop.timer.finish()
    except Exception as error:  # noqa: BLE001 - reading a loss on a broken device must not hide why
        print(f"hpcdist: the last steps were not recorded: {error!r}", file=sys.stderr)
