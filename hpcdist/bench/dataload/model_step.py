"""Timing training steps of a model with one batch that is on its device already."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from hpcdist.data.arrays import Samples
from hpcdist.job.spec import Model, TimedModel, Train
from hpcdist.training.model.models import build_model
from hpcdist.training.optimization import build_optimizer

if TYPE_CHECKING:
    from hpcdist.training.model.models import Shape

_WARMUP = 2
_STEPS = 20
_LEAST_STEPS = 3
_MAX_TIME_S = 10.0


def time_steps(
    setting: TimedModel,
    batch: Samples,
    num_classes: int,
    *,
    device: torch.device,
    alive: Callable[[], None],
) -> list[float]:
    """Seconds of each of some steps, forward, backward and optimizer, after a few to warm up."""
    assert setting.name is not None
    model_setting = Model(name=setting.name, args=setting.args, image_size=setting.image_size)
    channels, height, width = batch.images.shape[1:]
    shape: Shape = (channels, height, width)
    torch.manual_seed(0)
    model = build_model(model_setting, shape, num_classes).to(device).train()
    optimizer = build_optimizer(model, Train())
    batch = batch.to(device)

    def step() -> float:
        begin_s = time.perf_counter()
        loss = F.cross_entropy(model(batch.images), batch.labels)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        alive()
        return time.perf_counter() - begin_s

    for _ in range(_WARMUP):
        step_s = step()
    number = max(_LEAST_STEPS, min(_STEPS, int(_MAX_TIME_S / step_s)))
    return [step() for _ in range(number)]
