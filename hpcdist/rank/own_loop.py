"""Recording from a loop that is not hpcdist's own: the functions of hpcdist.record."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from hpcdist.base import files
from hpcdist.rank import context as rank
from hpcdist.rank.profiling import Profiler
from hpcdist.runs.events import PHASES

if TYPE_CHECKING:
    from torch import nn

    from hpcdist.rank.digest import Digester
    from hpcdist.rank.timing import Timer

_Batch = TypeVar("_Batch")


_timer: Timer | None = None
"""The timer of this process's loop; a rank has one loop."""
_model: nn.Module | None = None
"""The model that it watches."""
_profiler: Profiler | None = None
_digester: Digester | None = None
_num_steps = 0
"""Finished steps, those before a checkpoint included."""
_is_deaf = False
_flops: tuple[float, str] | None = None
"""Operations per sample, and the precision."""
_PRECISIONS = ("fp32", "tf32", "bf16-mixed", "bf16-true", "fp16-mixed")


def start(*, first_step: int = 0, model: nn.Module | None = None) -> None:
    """Begin the first step now, or the one after `first_step` steps of a checkpoint.

    With `model`, a torch model that computes on this rank's device, the phases forward_backward,
    exposed_communication (with several ranks) and optimizer are seen by hooks: leave out `mark` for
    these. On a GPU they are timed by the GPU's own clock. What the loop does between backward() and
    the optimizer's step counts as communication, but for a single rank.

    Call it again after a pause, such as an evaluation, that belongs to no step.
    """
    global _timer, _model, _profiler, _digester, _num_steps  # noqa: PLW0603 - a process is one rank, and has one loop
    context = rank.current()
    if context is None:
        return
    if _timer is None:
        if model is None:
            _timer = context.recorder(first_step=first_step)
        else:
            from hpcdist.rank.communication import make_watching_timer

            _model = model
            _timer = make_watching_timer(context, model, first_step=first_step)
        _profiler = Profiler(context, _timer)
        if model is not None and context.job.record.digest:
            from hpcdist.rank.digest import make_digester

            _digester = make_digester(context, _timer, model, first_step=first_step)
        _num_steps = first_step
    _timer.begin()


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
    if _timer is not None:
        _timer.mark(phase)


def step(*, samples: int, loss: Any = None, learning_rate: Any = None) -> None:
    """Finish a step with `samples` samples on this rank.

    `loss` and `learning_rate` are anything that float() takes; they are read about once in a
    hundred steps or less.
    """
    global _num_steps  # noqa: PLW0603 - as above
    if _timer is None:
        start()
    if _timer is not None:
        _num_steps += 1
        if hasattr(loss, "detach"):
            # The graph behind a loss must not live on until it is read, nor be warned of then; and
            # a sum of many in 16 bits would stand still.
            loss = loss.detach().float()
        _timer.step(samples=samples, loss=loss, learning_rate=learning_rate)
        if _digester is not None:
            _digester.step(_num_steps, loss=loss)


def flops(*, per_sample: float, precision: str = "fp32") -> None:
    """Tell the floating-point operations of both passes for one sample; a product and a sum are
    two. The summary then has FLOP/s, and their share of what the devices can do in `precision`.

    Raises ValueError for no positive number, and for another precision than fp32, tf32, bf16-mixed,
    bf16-true and fp16-mixed.
    """
    global _flops  # noqa: PLW0603 - as above
    if not 0 < float(per_sample) < math.inf:
        raise ValueError(f"per_sample is {per_sample}, must be a number above 0")
    if precision not in _PRECISIONS:
        raise ValueError(f"{precision!r} is not a precision; known are {', '.join(_PRECISIONS)}")
    _flops = (float(per_sample), precision)


def should_stop() -> bool:
    """Return True where a checkpoint must be saved now, before `sys.exit(record.EXIT_STOPPED)`.

    Call it once after every step, on every rank: all ranks get True at the same step. From the
    first call on, SIGTERM and SIGINT no longer end the process, unless it has handlers of its own.
    Workers of a DataLoader that a site's signals may reach need
    `worker_init_fn=record.shield_worker`.
    """
    global _is_deaf  # noqa: PLW0603 - as above
    context = rank.current()
    if context is None:
        return False
    if not _is_deaf and context.has_agent:
        _is_deaf = True
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            context.progress.ignore_sigterm()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    return context.progress.should_stop()


def evaluate(
    *, loss: float | None = None, accuracy: float | None = None, samples: int | None = None
) -> None:
    """Record an evaluation; `accuracy` is a share from 0 to 1, `samples` are over all ranks."""
    context = rank.current()
    if context is None:
        return
    if _timer is not None:
        _timer.wait()
    if accuracy is not None and not 0 <= float(accuracy) <= 1:
        # A percentage, perhaps: a training must not end for that.
        line = f"warning: record.evaluate: accuracy is {float(accuracy):g}"
        files.print_line(line, sys.stderr)
        context.note(
            "record.evaluate: accuracy must be a share from 0 to 1; what is not is left out"
        )
        accuracy = None
    context.events.write(
        "evaluate",
        step=_num_steps if _timer is not None else None,
        loss=None if loss is None else float(loss),
        accuracy=None if accuracy is None else float(accuracy),
        samples=None if samples is None else int(samples),
    )
    if _timer is not None:
        _timer.begin()


def forget() -> None:
    """Forget the loop, in a process that a rank has forked: its steps are not the rank's."""
    global _timer, _model, _profiler, _digester, _flops  # noqa: PLW0603 - as above
    _timer = _model = _profiler = _digester = _flops = None


def finish() -> None:
    """Write what has not been written; called when the script has ended, well or not."""
    if _timer is None:
        return
    try:
        if _profiler is not None:
            _profiler.finish()
        _timer.finish()
        context = rank.current()
        if _model is not None and context is not None:
            from hpcdist.rank.communication import write_ddp_communication

            write_ddp_communication(_model, context.events)
        if _flops is not None and context is not None and "torch" in sys.modules:
            from hpcdist.rank.flops import write_flops

            write_flops(context, per_sample=_flops[0], precision=_flops[1])
    except Exception as error:  # noqa: BLE001 - reading a loss on a broken device must not hide why
        files.print_line(f"hpcdist: the last steps were not recorded: {error!r}", sys.stderr)
