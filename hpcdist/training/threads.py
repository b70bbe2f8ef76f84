"""How many CPU threads a rank computes with: no more than its model has work for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FLOP_PER_THREAD = 100e6
"""Work of one forward pass for which a thread pays.

Measured with FashionCNN on 2 CPUs, 2 threads against 1: 1.1 times as fast at 22 MFLOP (the digits,
32 per batch), 0.9 at 100, 1.2 at 177, 1.7 at 271 (FashionMNIST, 32 per batch). What little two
threads gain on less work they lose twentyfold as soon as another program wants a CPU, since each of
them spins until the other has had its turn.
"""


def pick_num_threads(model: nn.Module, images: Tensor, *, batch_size: int, available: int) -> int:
    """Threads for steps of `batch_size` images such as `images`, at most `available`.

    A function of the model and the batch alone, and of no clock: the number of threads decides in
    which order numbers are added up, and so must not differ between a run and its resume.
    """
    if available == 1:
        return 1
    from torch.utils.flop_counter import FlopCounterMode

    was_training = model.training
    model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(images)
    model.train(was_training)
    flop = counter.get_total_flops() / len(images) * batch_size
    return max(1, min(available, int(flop / FLOP_PER_THREAD)))
