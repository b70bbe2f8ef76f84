"""When gradients are ready: which parameter's is the last, and being told of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from hpcdist.base.errors import HpcdistError

if TYPE_CHECKING:
    from hpcdist.data.arrays import Samples


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
    hooks = [
        call_when_ready(parameter, order.append)
        for parameter in wrapped.parameters()
        if parameter.requires_grad
    ]
    wrapped.eval()
    with autocast:
        logits = wrapped(batch.images)
        _require_logits(logits, (len(batch), num_classes))
        loss = F.cross_entropy(logits.float(), batch.labels)
    torch.autograd.backward(loss)
    for hook in hooks:
        hook.remove()
    for parameter in order:
        parameter.grad = None
    return order[-1] if order else None


def _require_logits(logits: Any, shape: tuple[int, int]) -> None:
    found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if found != shape:
        raise HpcdistError(
            f"for {shape[0]} images of {shape[1]} classes the model gives {found}, must be a "
            f"tensor of shape {shape}",
            hint="give it one output per class (num_classes), and no other outputs beside it",
        )


def call_when_ready(parameter: nn.Parameter, hook: Callable[[nn.Parameter], None]) -> Any:
    """Have `hook` called in each backward pass once the gradient is there; returns its handle."""
    register: Any = parameter.register_post_accumulate_grad_hook
    return register(hook)
