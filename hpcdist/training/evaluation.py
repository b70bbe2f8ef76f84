"""Evaluation over the test data, shared by the ranks, every sample counted once.

The batches are the same for any number of ranks, each is computed by one rank, and what they give
is summed up in their order: so the loss and the number of right answers are exactly those that a
single process with as many threads finds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from hpcdist.data.batches import BatchSource
from hpcdist.data.order import Share
from hpcdist.rank.context import RankContext
from hpcdist.runs.events import Epoch, Evaluation

BATCH_SIZE = 128  # a constant, not train.batch_size: see above


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result of an evaluation, over all ranks."""

    loss: float
    """Mean over the samples."""
    accuracy: float
    """Share of right answers."""
    samples: int


def evaluate(
    predict: Callable[[Tensor], Tensor],
    source: BatchSource,
    num_samples: int,
    context: RankContext,
    *,
    together: bool = False,
) -> Score:
    """Score `predict` on all of the test data; all ranks get the same result.

    `together`: all ranks must call `predict` equally often, so one that has no batch left takes
    the very first again, and leaves it out.
    """
    rank, world_size = context.rank, context.world_size
    num_batches = -(-num_samples // BATCH_SIZE)
    num_turns = -(-num_batches // world_size)
    numbers = range(rank, num_turns * world_size if together else num_batches, world_size)
    shares = []
    for number in numbers:
        begin = number * BATCH_SIZE if number < num_batches else 0
        end = min(begin + BATCH_SIZE, num_samples)
        shares.append(Share(begin=begin, end=end, filled_end=end))
    counts = torch.zeros(num_batches, 2, dtype=torch.float64, device=context.device)
    batches = source.epoch(torch.arange(num_samples), shares, 0)
    for number, handed in zip(numbers, batches, strict=True):
        batch = source.bring(handed)
        logits, labels = predict(batch.images).float(), batch.labels
        if number < num_batches:
            losses = F.cross_entropy(logits, labels, reduction="none")
            counts[number, 0] = losses.sum(dtype=torch.float64)
            counts[number, 1] = (logits.argmax(dim=1) == labels).sum()
        context.progress.alive()
    source.close()  # its workers would be idle until the next evaluation
    if world_size > 1:
        dist.all_reduce(counts)  # adds zeros to each row, which rounds nothing
    loss, right = (counts.sum(dim=0) / num_samples).tolist()
    return Score(loss=loss, accuracy=right, samples=num_samples)


def score_model(
    model: nn.Module,
    source: BatchSource,
    num_samples: int,
    context: RankContext,
    *,
    autocast: AbstractContextManager[Any],
    together: bool = False,
) -> Score:
    """Score a model that is being trained, as `evaluate` does, in a number format."""
    model.eval()
    with torch.inference_mode(), autocast:
        score = evaluate(model, source, num_samples, context, together=together)
    model.train()
    return score


def record_epoch(
    context: RankContext,
    epoch: Epoch,
    score: Score | None,
    *,
    epochs: int,
    begun_of: int | None = None,
    num_samples: int = 0,
) -> None:
    """Write the events of an epoch, or of what there was of it, which then is begun within a
    training of so many steps, and print rank 0's line. The epoch's loss is this rank's;
    `num_samples` are those of all."""
    if score is not None:
        context.events.write(Evaluation(epoch=epoch.epoch, step=epoch.step, **asdict(score)))
    context.events.write(epoch)
    if context.rank == 0:
        own = " (rank 0)" if context.world_size > 1 else ""  # all else is of all ranks
        loss = "" if epoch.loss is None else f"  loss {epoch.loss:.4f}{own}"
        accuracy = f"  accuracy {100 * score.accuracy:.2f} %" if score else ""
        time_s = epoch.epoch_time_s
        rate = f"  {num_samples / time_s:,.0f} samples/s" if num_samples and time_s else ""
        progress = f"epoch {epoch.epoch}/{epochs}"
        if begun_of is not None:
            progress = f"step {epoch.step:,}/{begun_of:,} in epoch {epoch.epoch + 1}"
        context.say(f"{progress}{loss}{accuracy}{rate}")
