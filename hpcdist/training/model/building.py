"""Building the job's model, with an event of its size: also where there is no memory for it."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from hpcdist.data.arrays import DataSet
from hpcdist.job.spec import TrainingJob
from hpcdist.runs.events import EventWriter
from hpcdist.training.checkpoint import rng
from hpcdist.training.model.models import build_model, count_parameters


def build_noted(job: TrainingJob, data: DataSet, events: EventWriter) -> nn.Module:
    """The model that the job names, on the CPU, the same weights in all ranks.

    Whoever looks for why memory ran out afterwards, or while the model was made, finds its size.
    """
    rng.seed_weights(job.train.seed)
    try:
        model = build_model(job.model, data.image_shape, data.num_classes)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error):
            _note_size(job, data, events)
        raise
    events.write("model", parameters=count_parameters(model), built=True)
    return model


def _note_size(job: TrainingJob, data: DataSet, events: EventWriter) -> None:
    """What a model without memory behind its weights (device meta) says; else nothing is known."""
    with contextlib.suppress(Exception), torch.device("meta"):
        model = build_model(job.model, data.image_shape, data.num_classes)
        events.write("model", parameters=count_parameters(model), built=False)
