"""Recording from a loop that is not hpcdist's own: the functions of hpcdist.record."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hpcdist.base import files
from hpcdist.rank import context as rank
from hpcdist.rank.profiling import Profiler
from hpcdist.runs.events import PHASES, Evaluation, Flops

if TYPE_CHECKING:
    from torch import nn

    from hpcdist.rank.model import Digester
    from hpcdist.rank.timing import Timer

_Batch = TypeVar("_Batch")
_PRECISIONS = ("fp32", "tf32", "bf16-mixed", "bf16-true", "fp16-mixed")


class _Loop:
    """The loop of this process: a rank has one."""

    timer: Timer | None = None
    digester: Digester | None = None
    num_steps = 0
    """Finished steps, those before a checkpoint included."""
    is_deaf = False
    flops: Flops | None = None


_loop = _Loop()


def start(*, first_step: int = 0, model: nn.Module | None = None) -> None:
    """Begin the first step now, or the one after `first_step` steps of a checkpoint.

    With `model`, a torch model that computes on this rank's device, the phases forward_backward,
    exposed_communication (with several ranks) and optimizer are seen by hooks: leave out `mark` for
    these. On a GPU they are timed by the GPU's own clock. What the loop does between backward() and
    the optimizer's step counts as communication, but for a single rank.

    Call it again after a pause, such as an evaluation, that belongs to no step.
    """
    context = rank.current()
    if context is None:
        return
    if _loop.timer is None:
        _loop.num_steps = first_step
        if model is None:
            _loop.timer = context.recorder(first_step=first_step)
        else:
            from hpcdist.rank.model import Digester
            from hpcdist.rank.timing import make_watching_timer

            _loop.timer = make_watching_timer(context, model, first_step=first_step)
            _loop.digester = Digester(context, _loop.timer, model, first_step=first_step)
        Profiler(context, _loop.timer)
    _loop.timer.begin()


def current_timer() -> Timer | None:
    """Return the timer of this process's loop; None before it has begun, and outside a run."""
    return _loop.timer


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
    if _loop.timer is not None:
        _loop.timer.mark(phase)


def step(*, samples: int, loss: Any = None, learning_rate: Any = None) -> None:
    """Finish a step with `samples` samples on this rank.

    `loss` and `learning_rate` are anything that float() takes; they are read about once in a
    hundred steps or less.
    """
    if _loop.timer is None:
        start()
    if _loop.timer is not None:
        _loop.num_steps += 1
        if hasattr(loss, "detach"):
            # The graph behind a loss must not live on until it is read, nor be warned of then; and
            # a sum of many in 16 bits would stand still.
            loss = loss.detach().float()
        _loop.timer.step(samples=samples, loss=loss, learning_rate=learning_rate)
        if _loop.digester is not None:
            _loop.digester.step(_loop.num_steps, loss=loss)


def flops(*, per_sample: float, precision: str = "fp32") -> None:
    """Tell the floating-point operations of both passes for one sample; a product and a sum are
    two. The summary then has FLOP/s, and their share of what the devices can do in `precision`.

    Raises ValueError for no positive number, and for another precision than fp32, tf32, bf16-mixed,
    bf16-true and fp16-mixed.
    """
    if not 0 < float(per_sample) < math.inf:
        raise ValueError(f"per_sample is {per_sample}, must be a number above 0")
    if precision not in _PRECISIONS:
        raise ValueError(f"{precision!r} is not a precision; known are {', '.join(_PRECISIONS)}")
    told, context = Flops(per_sample=float(per_sample), precision=precision), rank.current()
    if context is not None and told != _loop.flops:
        _loop.flops = told
        context.events.write(told)


class World(NamedTuple):
    """The ranks of an attempt, and the place of this one among them."""

    rank: int
    size: int
    full_size: int
    """Ranks that the job asks for: more than `size` where nodes are lost."""


def elastic() -> World:
    """Say that this program can go on in a world of another size, from what it has saved; return
    the world of this attempt. With `launch.min_nodes`, the run then goes on without nodes that are
    lost. Call it on every rank, before the first step."""
    context = rank.current()
    if context is None:
        number, size = (int(os.environ.get(name) or 0) for name in ("RANK", "WORLD_SIZE"))
        return World(number, size or 1, size or 1)
    context.progress.values.elastic = True
    return World(context.rank, context.world_size, context.job.num_ranks)


def should_stop() -> bool:
    """Return True where a checkpoint must be saved now, before `sys.exit(record.EXIT_STOPPED)`.

    Call it once after every step, on every rank: all ranks get True at the same step. From the
    first call on, SIGTERM and SIGINT no longer end the process, unless it has handlers of its own.
    Workers of a DataLoader that a site's signals may reach need
    `worker_init_fn=record.shield_worker`.
    """
    context = rank.current()
    if context is None:
        return False
    if not _loop.is_deaf:
        _loop.is_deaf = True
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            context.progress.values.ignores_sigterm = True
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
    if _loop.timer is not None:
        _loop.timer.wait()
    if accuracy is not None and not 0 <= float(accuracy) <= 1:
        # A percentage, perhaps: a training must not end for that.
        context.note("record.evaluate: accuracy must be a share from 0 to 1; others are left out")
        accuracy = None
    context.events.write(
        Evaluation(
            step=_loop.num_steps if _loop.timer is not None else None,
            loss=None if loss is None else float(loss),
            accuracy=None if accuracy is None else float(accuracy),
            samples=None if samples is None else int(samples),
        )
    )
    if _loop.timer is not None:
        _loop.timer.begin()


def forget() -> None:
    """Forget the loop, in a process that a rank has forked: its steps are not the rank's."""
    _loop.__dict__.clear()


def finish() -> None:
    """Write what has not been written; called when the script has ended, well or not."""
    context = rank.current()
    if _loop.timer is None or context is None:
        return
    try:
        _loop.timer.finish()
    except Exception as error:  # noqa: BLE001 - reading a loss on a broken device must not hide why
        files.print_line(f"hpcdist: the last steps were not recorded: {error!r}", sys.stderr)
