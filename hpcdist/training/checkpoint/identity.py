"""What makes two trainings the same, so that one can go on from the other's checkpoint."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from hpcdist.base.errors import HpcdistError
from hpcdist.data.images.whole_batch.choice import is_on_device
from hpcdist.job.spec import TrainingJob, job_to_dict
from hpcdist.rank.context import RankContext

_NO_MATTER = {
    "data": {
        *("root", "workers", "download", "bad_files", "reads", "cache", "handover"),
        *("pin_memory", "prefetch_factor", "persistent_workers", "multiprocessing_context"),
        "device_transform",  # what comes of it counts
    },
    "train": {"evaluate_every_epochs", "num_threads", "gradient_as_bucket_view"},
}
"""Keys that change nothing about the weights; threads are taken from what is in effect."""

_RUN_LENGTH = {"epochs", "max_steps"}
"""Matter only where the learning rate depends on how much of the run is done."""

_NEEDED = ("model", "data.name", "data.train_samples", "train.optimizer")
"""Where these differ, a checkpoint is of no use."""


def describe(job: TrainingJob, context: RankContext) -> dict[str, Any]:
    """All that the weights after a step depend on, as a flat dict of dotted key and value."""
    flat: dict[str, Any] = {}
    for section in ("model", "data", "train"):
        values = msgspec.to_builtins(getattr(job, section))
        for key, value in values.items():
            if not _is_left_out(job, section, key):
                flat[f"{section}.{key}"] = value
    if job.data.decoder == "pil":  # its pixels are those of exact
        flat["data.decoder"] = "exact"
    if is_on_device(job.data, context.device):
        flat["data.device_transform"] = True
    flat["strategy"] = job_to_dict(job)["strategy"]
    flat["world_size"] = context.world_size
    flat["num_threads"] = torch.get_num_threads()
    flat["device"] = _device_name(context)
    flat["torch"] = str(torch.__version__)
    return flat


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs, one phrase each: `world_size 4, now 2`."""
    keys = [*now, *(key for key in before if key not in now)]
    return [
        f"{key} {before.get(key)}, now {now.get(key)}"
        for key in keys
        if before.get(key) != now.get(key)
    ]


def require_same_training(before: dict[str, Any], now: dict[str, Any], checkpoint: str) -> None:
    """HpcdistError where the checkpoint is of another model, data set or optimizer."""
    wrong = [phrase for phrase in differences(before, now) if phrase.startswith(_NEEDED)]
    if wrong:
        raise HpcdistError(
            f"{checkpoint} is of another training: {'; '.join(wrong)}",
            hint="set checkpoint.resume to a checkpoint of this job, or leave it out",
        )


def _is_left_out(job: TrainingJob, section: str, key: str) -> bool:
    if section == "train" and key in _RUN_LENGTH:
        return job.train.schedule == "constant"
    return key in _NO_MATTER.get(section, ())


def _device_name(context: RankContext) -> str:
    if context.device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return context.device
