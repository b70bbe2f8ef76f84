"""Communication within the two passes of a model that is cut up over the ranks (FSDP2).

The gathers and scatters of FSDP happen throughout both passes, so that no single moment divides
computing from communication. What is timed is how long the pass stands still for them: on CPUs the
calls themselves, on a GPU the wait of the stream that computes. Copying into and out of their
buffers is a part of it. FSDP has no public hooks there: where a version of torch lacks what is
wrapped here, nothing is timed, and communication stays within forward_backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hpcdist.rank.context import RankContext
from hpcdist.rank.peers import may_exchange
from hpcdist.rank.timing import Timer, call_when_ready, make_timer, note_order

_OF_GROUP = ("wait_for_unshard", "post_backward")
_ON_CPU = "unshard"  # on a GPU it only queues work, on streams of its own
_OF_ROOT = "_root_post_backward_final_callback"


def time_sharded(model: nn.Module, timer: Timer, device: torch.device) -> None:
    """Have the timer told of the communication in steps of `model`, where it is cut up and can be
    watched."""
    names = _OF_GROUP if device.type == "cuda" else (*_OF_GROUP, _ON_CPU)
    modules: list[Any] = list(model.modules())
    try:
        states = [each._get_fsdp_state() for each in modules if hasattr(each, "_get_fsdp_state")]  # noqa: SLF001
        calls = [(group, name) for state in states for group in _groups(state) for name in names]
        calls += [(state, _OF_ROOT) for state in states]
        methods = [(owner, name, getattr(owner, name)) for owner, name in calls]
    except AttributeError:
        return
    watch = _Watch(timer)
    for owner, name, method in methods:
        setattr(owner, name, watch.around(method))


def _groups(state: Any) -> list[Any]:
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return list(groups)
    group = state._fsdp_param_group  # noqa: SLF001 - before torch 2.13
    return [] if group is None else [group]


class _Watch:
    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._depth = 0

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with marks before and after it; those within it count as one."""

        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._depth or torch.is_inference_mode_enabled():  # an evaluation is in no step
                return method(*args, **kwargs)
            self._timer.mark("forward_backward")
            self._depth += 1
            try:
                return method(*args, **kwargs)
            finally:
                self._depth -= 1
                self._timer.mark("exposed_communication")

        return timed


def make_watching_timer(context: RankContext, model: nn.Module, *, first_step: int) -> Timer:
    """Return a timer for a loop that does not tell its phases: it sees them by hooks on the
    parameters of `model` and on every optimizer of this process."""
    timer = make_timer(context, first_step=first_step)
    order: list[nn.Parameter] = []
    hooks = note_order(model, order) if context.world_size > 1 else []
    waits_for_others = False
    is_begun = False

    def before_optimizer(*_: Any) -> None:
        nonlocal waits_for_others, is_begun
        if waits_for_others:
            timer.mark_backward()
            return
        if not is_begun and context.world_size > 1:
            time_sharded(model, timer, torch.device(context.device))
        is_begun = True
        if hooks and order:
            for hook in hooks:
                hook.remove()
            hooks.clear()
            waits_for_others = may_exchange()  # by now a script has joined its group
            if waits_for_others:
                call_when_ready(order[-1], timer.note_last_gradient)
        timer.mark("forward_backward")

    register_optimizer_step_pre_hook(before_optimizer)
    register_optimizer_step_post_hook(lambda *_: timer.mark("optimizer"))
    return timer
