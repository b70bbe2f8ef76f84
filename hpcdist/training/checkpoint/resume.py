"""The start of a training: its own newest checkpoint after a restart, or a given one.

Also what makes two trainings the same, so that one can go on from the checkpoint of the other.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from hpcdist.base.errors import HpcdistError
from hpcdist.job.spec import TrainingJob, job_to_dict
from hpcdist.rank.context import RankContext
from hpcdist.runs.events import Note
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint import files as checkpoint_files

_CHUNK_BYTES = 1 << 26


def find_start(context: RankContext, job: TrainingJob, *, has_group: bool) -> Path | None:
    """Return the checkpoint that this attempt goes on from, the same in all ranks, if there is one.
    Rank 0 alone looks for it: on a shared file system nodes may see different things, and where
    there is none, node 0 alone has it, and gives it to the others."""
    found = _find(context, job) if context.rank == 0 else None
    own = context.run.checkpoints_folder
    is_own = found is not None and Path(found).parent == own
    start = [(is_own, Path(found).name if is_own else found) if found is not None else None]
    if has_group:
        dist.broadcast_object_list(start, src=0)
    if start[0] is None:
        return None
    is_own, name = start[0]
    path = own / name if is_own else Path(name)
    if is_own and has_group and context.num_nodes > 1 and not checkpoint_files.is_in_parts(path):
        _share(context, path)
    return path


def _share(context: RankContext, path: Path) -> None:
    """Bring a checkpoint of node 0's to the nodes that have a run directory of their own."""
    are_lacking: list[bool | None] = [None] * context.world_size
    dist.all_gather_object(are_lacking, not path.exists())
    if not any(are_lacking):
        return
    takes = are_lacking[context.rank] and context.local_rank == 0
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with ExitStack() as opened:
        given = opened.enter_context(path.open("rb")) if context.rank == 0 else None
        taken = opened.enter_context(aside.open("xb")) if takes else None
        while True:
            chunk = [given.read(_CHUNK_BYTES) if given else None]
            dist.broadcast_object_list(chunk, src=0)
            if not chunk[0]:
                break
            if taken:
                taken.write(chunk[0])
    if takes:
        aside.replace(path)
    dist.barrier()


def _find(context: RankContext, job: TrainingJob) -> str | None:
    own = context.run.checkpoints_folder
    if context.is_current():
        checkpoint_files.remove_unfinished(own)
    if context.attempt > 0:

        def set_aside(path: Path) -> None:
            _pass_over(context, path)
            if context.is_current():
                checkpoint_files.set_aside_damaged(path)

        path = checkpoint.newest_intact(checkpoint_files.list_checkpoints(own), set_aside)
        if path is not None:
            return str(path)
    if job.checkpoint.resume is None:
        return None
    return str(_find_given(context, job.checkpoint.resume))


def _find_given(context: RankContext, resume: str) -> Path:
    """Return the newest whole checkpoint that checkpoint.resume can mean."""
    candidates = checkpoint_files.resume_candidates(resume)
    path = checkpoint.newest_intact(candidates, lambda path: _pass_over(context, path))
    if path is None:
        raise HpcdistError(
            f"checkpoint.resume is {resume!r}, where no checkpoint is whole: {candidates[0].name} "
            "is damaged, or not hpcdist's",
            hint="start without it: leave checkpoint.resume out",
        )
    return path


def _pass_over(context: RankContext, path: Path) -> None:
    message = f"{path.name} is damaged and is passed over for the one before"
    context.say(f"warning: {message}")
    context.events.write(Note(message=message))


_NO_MATTER = {
    *("data.root", "data.workers", "data.download", "data.bad_files"),
    *("data.pin_memory", "data.prefetch_factor", "data.persistent_workers"),
    "data.multiprocessing_context",
    *("train.evaluate_every_epochs", "train.num_threads", "train.gradient_as_bucket_view"),
}
"""Keys that change nothing about the weights; threads are taken from what is in effect."""

_RUN_LENGTH = {"train.epochs", "train.max_steps"}
"""Matter only where the learning rate depends on how much of the run is done."""

_NEEDED = ("model", "data.name", "data.train_samples", "train.optimizer")
"""Keys that must be equal: else a checkpoint is of no use."""


def describe_training(job: TrainingJob, context: RankContext) -> dict[str, Any]:
    """All that the weights after a step depend on, as a flat dict of dotted key and value."""
    flat: dict[str, Any] = {}
    for section in ("model", "data", "train"):
        values = msgspec.to_builtins(getattr(job, section))
        flat |= {f"{section}.{key}": value for key, value in values.items()}
    left_out = _NO_MATTER | (_RUN_LENGTH if job.train.schedule == "constant" else set())
    flat = {key: value for key, value in flat.items() if key not in left_out}
    flat["strategy"] = job_to_dict(job)["strategy"]
    flat["world_size"] = context.world_size
    flat["num_threads"] = torch.get_num_threads()
    is_gpu = context.device.startswith("cuda")
    flat["device"] = torch.cuda.get_device_name() if is_gpu else context.device
    flat["torch"] = str(torch.__version__)
    return flat


def describe_differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the differences, one phrase each: `world_size 4, now 2`."""
    keys = [*now, *(key for key in before if key not in now)]
    return [
        f"{key} {before.get(key)}, now {now.get(key)}"
        for key in keys
        if before.get(key) != now.get(key)
    ]


def require_same_training(before: dict[str, Any], now: dict[str, Any], checkpoint: str) -> None:
    """Raise HpcdistError where the checkpoint is of another model, data set or optimizer."""
    wrong = [phrase for phrase in describe_differences(before, now) if phrase.startswith(_NEEDED)]
    if wrong:
        raise HpcdistError(
            f"{checkpoint} belongs to another training: {'; '.join(wrong)}",
            hint="set checkpoint.resume to a checkpoint of this job, or leave it out",
        )
