"""A timer for a loop that does not tell its phases: it sees them by hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hpcdist.rank.communication import time_sharded
from hpcdist.rank.context import RankContext
from hpcdist.rank.peers import may_exchange
from hpcdist.rank.timing import Timer, call_when_ready, make_timer, note_order


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
