"""Timing of steps: with the host's clock, or on a GPU with its own.

On a GPU a host's clock shows only when work was queued. There marks are CUDA events in the stream.
They are played back to the recorder, in order, with the GPU's own times, as soon as the GPU has
passed them, so progress is told when a step is done, not when it is queued. The loop waits for the
GPU only at an epoch's end, and once per window, where the recorder reads the loss.

Communication that a step waits for lies between the last gradient of the own backward pass and the
optimizer's step: with DistributedDataParallel, gradients that are still under way.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hpcdist.base.errors import HpcdistError
from hpcdist.rank.context import RankContext
from hpcdist.rank.recorder import StepRecorder, may_exchange

if TYPE_CHECKING:
    from hpcdist.data.arrays import Samples

_MS = 1e-3


class GpuTimer:
    """Keeps the loop's marks until the GPU has passed them, then plays them to the recorder."""

    def __init__(
        self,
        make_recorder: Callable[[Callable[[], float]], StepRecorder],
        make_event: Callable[[], Any],
    ) -> None:
        """`make_event` gives events that have the methods of torch.cuda.Event."""
        self._now_s = 0.0
        self._recorder = recorder = make_recorder(lambda: self._now_s)
        self.heed, self.hold_window = recorder.heed, recorder.hold_window
        self.set_epoch = recorder.set_epoch  # `wait` has told the steps before it
        self._make_event = make_event
        self._last_passed: Any = None
        self._last_gradient: Any = None
        self._waiting: deque[tuple[Any, Callable[[], None]]] = deque()

    def begin(self) -> None:
        self._put(self._recorder.begin)

    def mark(self, phase: str) -> None:
        self._put(lambda: self._recorder.mark(phase))

    def note_last_gradient(self, _parameter: Any = None) -> None:
        self._last_gradient = self._make_event()
        self._last_gradient.record()

    def mark_backward(self) -> None:
        if self._last_gradient is not None:
            tell = functools.partial(self._recorder.mark, "forward_backward")
            self._waiting.append((self._last_gradient, tell))
            self._last_gradient = None
        self.mark("exposed_communication")

    def step(self, **told: Any) -> None:
        self._put(lambda: self._recorder.step(**told))
        while self._waiting and self._waiting[0][0].query():
            self._play_next()

    def wait(self) -> None:
        """Wait until the GPU has passed all marks, and play them."""
        if self._waiting:
            self._waiting[-1][0].synchronize()
        while self._waiting:
            self._play_next()

    def finish(self) -> None:
        """Wait for the GPU, and write the open window."""
        self._put(lambda: None)  # the recorder's clock goes on to now
        self.wait()
        self._recorder.finish()

    def _put(self, tell: Callable[[], None]) -> None:
        event = self._make_event()
        event.record()
        self._waiting.append((event, tell))

    def _play_next(self) -> None:
        event, tell = self._waiting.popleft()
        if self._last_passed is not None:
            # Times are added up piece by piece: one float32 since the start would lose its digits.
            self._now_s += self._last_passed.elapsed_time(event) * _MS
        self._last_passed = event
        tell()


Timer = StepRecorder | GpuTimer


def make_timer(context: RankContext, *, first_step: int) -> Timer:
    if context.device.startswith("cuda"):
        return GpuTimer(
            lambda clock: context.recorder(first_step=first_step, clock=clock),
            lambda: torch.cuda.Event(enable_timing=True),  # type: ignore[no-untyped-call]  # torch gives no types
        )
    return context.recorder(first_step=first_step)


def make_watching_timer(context: RankContext, model: nn.Module, *, first_step: int) -> Timer:
    """Return a timer for a loop that does not tell its phases: it sees them by hooks on the
    parameters of `model` and on every optimizer of this process."""
    timer = make_timer(context, first_step=first_step)
    order: list[nn.Parameter] = []
    hooks = note_order(model, order) if context.world_size > 1 else []
    waits_for_others = False

    def before_optimizer(*_: Any) -> None:
        nonlocal waits_for_others
        if waits_for_others:
            timer.mark_backward()
            return
        if hooks and order:
            for hook in hooks:
                hook.remove()
            hooks.clear()
            # By now a script has joined its group. FSDP exchanges throughout both passes.
            waits_for_others = may_exchange() and not is_sharded(model.parameters())
            if waits_for_others:
                call_when_ready(order[-1], timer.note_last_gradient)
        timer.mark("forward_backward")

    register_optimizer_step_pre_hook(before_optimizer)
    register_optimizer_step_post_hook(lambda *_: timer.mark("optimizer"))
    return timer


def is_sharded(parameters: Iterable[Tensor]) -> bool:
    """Return whether each rank has a part of the parameters (FSDP)."""
    return any(
        hasattr(one, "to_local") or type(one).__name__ == "FlatParameter" for one in parameters
    )


def warm_up(
    wrapped: nn.Module,
    batch: Samples,
    autocast: AbstractContextManager[Any],
    *,
    num_classes: int,
) -> nn.Parameter | None:
    """Run one pass that leaves no trace; returns the parameter whose gradient is ready last.

    HpcdistError where the model gives other than one number per sample and class.

    DistributedDataParallel orders its buckets anew after the first pass, and their order decides
    in which order the ranks are summed up: after this pass it is the same at the start and after a
    resume, which is what makes a resume exact with more than two ranks. Evaluation mode keeps
    running means and random generators as they are.
    """
    order: list[nn.Parameter] = []
    hooks = note_order(wrapped, order)
    wrapped.eval()
    with autocast:
        logits = wrapped(batch.images)
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        if found != (shape := (len(batch), num_classes)):
            raise HpcdistError(
                f"for {shape[0]} images of {num_classes} classes the model gives {found}, must be "
                f"a tensor of shape {shape}",
                hint="give it one output per class (num_classes), and no other outputs",
            )
        loss = F.cross_entropy(logits.float(), batch.labels)
    torch.autograd.backward(loss)
    for hook in hooks:
        hook.remove()
    for parameter in order:
        parameter.grad = None
    return order[-1] if order else None


def note_order(model: nn.Module, order: list[nn.Parameter]) -> list[Any]:
    """Return hooks that note in `order` whose gradients are ready, as they are."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [call_when_ready(parameter, order.append) for parameter in parameters]


def call_when_ready(parameter: nn.Parameter, hook: Callable[[nn.Parameter], None]) -> Any:
    """Have `hook` called in each backward pass once the gradient is there; returns its handle."""
    register: Any = parameter.register_post_accumulate_grad_hook
    return register(hook)
