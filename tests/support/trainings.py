"""Jobs that can be interrupted, the interruptions, and what they must end with all the same."""

import json

import torch
from cluster_user import events

HELD_MODEL = """\
import os
import time
from pathlib import Path

from hpcdist.rank import context as rank
from hpcdist.training.model.models import MLP


class HeldMLP(MLP):
    def __init__(self, image_shape, num_classes):
        super().__init__(image_shape, num_classes, dropout=0.25)

    def forward(self, images):
        released = Path(os.environ["HPCDIST_RUN_DIR"], "released")
        progress = rank.current().progress
        if (progress.last_step or 0) >= (1 if rank.current().attempt > 0 else 75):
            while not released.exists() and not progress.is_asked_to_stop():
                time.sleep(0.02)
        return super().forward(images)
"""
"""Waits in a step, in the fourth epoch and after the first of each restart, until it is released or
asked to stop: what is to interrupt its training comes in time, however busy the machine is. It
draws random numbers in each step, which must go on as they were."""

TRAIN = (
    "ddp",
    *("--set", "model.name=held:HeldMLP"),
    *("--set", "train.num_threads=1"),
    *("--set", "train.epochs=6"),
    *("--set", "train.batch_size=32"),
    *("--set", "train.evaluate_every_epochs=0"),
    *("--set", "checkpoint.every_epochs=2"),
    *("--set", "launch.device=cpu"),
)
TWO = ("--nodes", 2, "--gpus", 1)
ON_ONE_NODE = ("--nodes", 1, "--gpus", 2)
"""The same ranks, for half of the imports."""
CPU = ("--set", "launch.device=cpu")


def train_undisturbed(user):
    """Return the last checkpoint of the training when nothing comes in between."""
    run = _submit(user)
    _release(run)
    return last_checkpoint(user.done(run))


def last_checkpoint(run):
    return torch.load(_newest(run), map_location="cpu", weights_only=True)


def _newest(run):
    return max(run.checkpoints_folder.glob("step-*.pt"))


def assert_equal(found, expected):
    assert found["identity"] == expected["identity"]
    assert found["position"] == expected["position"]
    for part in ("model", "optimizer", "rng"):
        assert flat(found[part]) == flat(expected[part])


def flat(value):
    """Plain values that compare bit for bit."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.shape, value.numpy().tobytes())
    if isinstance(value, dict):
        return {key: flat(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [flat(one) for one in value]
    return value


def train(user, *options):
    """Submit the training, with two ranks on one node, and wait until it is well under way."""
    run = _submit(user, *options)
    user.cluster.wait_for(lambda: len(events(run, "epoch")) >= 3, 90)
    return run


def _submit(user, *options):
    user.write("held.py", HELD_MODEL)
    return user.submit(*TRAIN, *ON_ONE_NODE, *options)


def _release(run):
    (run.path / "released").touch()


def end_well(user, run, expected, *, attempts=2):
    _release(run)
    user.done(run, 120)
    assert run.newest_attempt() + 1 == attempts
    resumed = events(run, "resume")
    assert len(resumed) == attempts - 1
    assert all(one["exact"] for one in resumed)
    assert_equal(last_checkpoint(run), expected)
    (row,) = json.loads(user("summary", run.id, "--json").stdout)
    assert (row["run"], row["state"], row["world_size"]) == (run.id, "done", 2)
    assert [events(run, "end", rank=rank)[-1]["status"] for rank in range(2)] == ["done", "done"]
    assert len(row["attempts"]) == attempts
    assert row["lost_time_s"] > 0


def stopped_steps(run):
    """The step at which each rank stopped, by attempt."""
    return [
        {one["step"] for rank in range(2) for one in events(run, "stop", rank=rank)},
        [one["step"] for one in events(run, "resume")],
    ]
