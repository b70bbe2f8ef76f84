"""Trainings that are disturbed on Slurm end as those that are not, to the last bit.

Each kind of disturbance, for replicas and for shards: `make disturbed` tries them.
"""

import os
import signal
import subprocess

import pytest
from cluster_user import CPU, TWO, events
from held_model import HELD_MODEL
from interruptions import (
    kill_agent,
    kill_script,
    kill_srun,
    lose_first_node,
    lose_second_node,
    preempt,
    requeue,
    terminate_all,
    warn,
)

from hpcdist.monitor.living import find_rank
from hpcdist.training.checkpoint.files import list_checkpoints

pytestmark = pytest.mark.disturbed

JOB = """
workload: train
strategy: {strategy}
data: {{name: digits, train_samples: 640, test_samples: 100}}
model: {{name: "held:HeldModel"}}
train: {{epochs: 4, batch_size: 8, schedule: cosine, num_threads: 1}}
checkpoint: {{every_steps: 6, keep: 3}}
launch: {{max_restarts: 1}}
record: {{digest: 1}}
"""
NUM_STEPS = 4 * 640 // (8 * 2)


def find_pid(run, rank):
    return find_rank(run, rank, run.newest_attempt()).pid


def kill_rank(_user, run):
    os.kill(find_pid(run, 1), signal.SIGKILL)


def largest_part(run):
    """The largest file of the newest checkpoint."""
    newest = list_checkpoints(run.checkpoints_folder)[0]
    parts = newest.glob("*.distcp") if newest.is_dir() else [newest]
    return max(parts, key=lambda part: part.stat().st_size)


def fill_disk(_user, run):
    """As `hpcdist drill` does: rank 0 can write no more than half of a checkpoint."""
    limit = largest_part(run).stat().st_size // 2
    words = ("prlimit", f"--pid={find_pid(run, 0)}", f"--fsize={limit}:")
    subprocess.run(words, check=True)


def damage_checkpoint(user, run):
    part = largest_part(run)
    os.truncate(part, part.stat().st_size // 2)
    kill_rank(user, run)


KINDS = (
    *(kill_rank, kill_agent, lose_first_node, lose_second_node, preempt, requeue, warn),
    *(fill_disk, damage_checkpoint, kill_script, kill_srun, terminate_all),
)


@pytest.fixture(scope="module")
def undisturbed():
    """What each rank had after each step, by strategy."""
    return {}


def submit(user, strategy):
    user.write("held.py", HELD_MODEL)
    user.write("job.yaml", JOB.format(strategy=strategy))
    return user.submit("job.yaml", *CPU, *TWO, "--partition", "low")


def course(run):
    """Parameters and loss of each rank after each step: of a step that was done again both."""
    return [
        {(one["step"], one["parameters"], one["loss"]) for one in events(run, "digest", rank=rank)}
        for rank in range(2)
    ]


@pytest.mark.parametrize("disturb", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_disturbed_training_ends_as_an_undisturbed_one(user, undisturbed, strategy, disturb):
    if strategy not in undisturbed:
        user.write("released", "")
        undisturbed[strategy] = course(user.done(submit(user, strategy), 150))
        (user.folder / "released").unlink()
        assert [len(steps) for steps in undisturbed[strategy]] == [NUM_STEPS] * 2
    run = submit(user, strategy)
    user.cluster.wait_for(
        lambda: (
            run.checkpoints_folder.is_dir() and len(list_checkpoints(run.checkpoints_folder)) > 1
        ),
        90,
    )
    disturb(user, run)
    user.cluster.wait_for(lambda: any(events(run, "resume", rank=rank) for rank in range(2)), 150)
    user.write("released", "")
    user.done(run, 150)
    print(disturb.__name__, run.newest_attempt(), run.read_attempt_verdict(0).message)
    resumed = events(run, "resume")[-1]
    assert resumed["exact"]
    assert 0 < resumed["step"] < NUM_STEPS
    assert course(run) == undisturbed[strategy]
