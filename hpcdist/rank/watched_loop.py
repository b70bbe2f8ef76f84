"""Phases of a loop that is not ours: seen by hooks on the model and on optimizers.

The forward and backward pass of a step end where an optimizer's step begins. What is between the
last gradient of the own backward pass and that moment was spent on other ranks: with
DistributedDataParallel, on gradients that are still under way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hpcdist.rank.context import RankContext
from hpcdist.rank.gradients import call_when_ready
from hpcdist.rank.timing import make_timer


class WatchedTimer:
    """Times steps as the training loop of this package does, without being told of the phases."""

    def __init__(self, context: RankContext, model: nn.Module, *, first_step: int) -> None:
        """Watch the parameters of `model`, and every optimizer of this process."""
        self._timer = make_timer(context, first_step=first_step)
        self._has_peers = context.world_size > 1
        self._order: list[nn.Parameter] = []
        self._hooks = self._note_order(model.parameters()) if self._has_peers else []
        register_optimizer_step_pre_hook(self._before_optimizer)
        register_optimizer_step_post_hook(self._after_optimizer)
        self.begin = self._timer.begin
        self.mark = self._timer.mark
        self.step = self._timer.step
        self.wait = self._timer.wait
        self.finish = self._timer.finish

    def _note_order(self, parameters: Iterable[nn.Parameter]) -> list[Any]:
        """Hooks for the first backward pass: they find the parameter whose gradient comes last."""
        return [
            call_when_ready(parameter, self._order.append)
            for parameter in parameters
            if parameter.requires_grad
        ]

    def _before_optimizer(self, *_: Any) -> None:
        if self._hooks and self._order:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            call_when_ready(self._order[-1], self._timer.note_last_gradient)
        elif self._has_peers and self._order:
            self._timer.mark_backward()
            return
        self._timer.mark("forward_backward")

    def _after_optimizer(self, *_: Any) -> None:
        self._timer.mark("optimizer")
