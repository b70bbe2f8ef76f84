"""The line that rank 0 prints after an epoch."""

from __future__ import annotations

from hpcdist.training.checkpoint.checkpoint import Position
from hpcdist.training.evaluation import Score


def epoch_line(
    position: Position,
    *,
    epochs: int,
    world_size: int,
    loss: float | None,
    score: Score | None,
    samples_per_s: float,
) -> str:
    """How far the training is, and what this attempt found of the epoch; None: nothing."""
    accuracy = f"  accuracy {score.accuracy:.4f}" if score else ""
    done = f"epoch {position.epoch}/{epochs}"
    if position.samples:
        done += f" and {position.samples:,} samples"
    own = " (rank 0)" if world_size > 1 else ""  # all else is of all ranks
    trained = "" if loss is None else f"  loss {loss:.4f}{own}"
    rate = "" if loss is None else f"  {samples_per_s:,.0f} samples/s"
    return f"{done}{trained}{accuracy}{rate}"
