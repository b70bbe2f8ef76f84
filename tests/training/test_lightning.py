"""Lightning's trainer beside the torch loop: the same batches, steps, events and stops."""

import pytest
import torch

from hpcdist.base import files
from hpcdist.job.spec import job_to_dict
from hpcdist.summary import summarize

STEPS = 7  # of an epoch of 203 samples on 2 ranks of 16
pytestmark = pytest.mark.usefixtures("lightning_is_imported")


@pytest.fixture
def lightning_job(make_job):
    return lambda strategy="auto", **sections: make_job(strategy, "lightning", **sections)


def assert_same_weights(found, expected):
    found, expected = found.weights(), expected.weights()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def scores(training, attempt=0):
    keys = ("epoch", "step", "loss", "accuracy", "samples")
    return [tuple(e[key] for key in keys) for e in training.events("evaluate", attempt=attempt)]


def assert_trained_alike(by_lightning, by_loop, rel=1e-3):
    """The same batches in the same order and as many steps; sums may be rounded otherwise."""
    assert by_lightning.exit_codes == by_loop.exit_codes, by_lightning.log()
    assert by_lightning.state()["position"] == by_loop.state()["position"]
    found, expected = scores(by_lightning), scores(by_loop)
    assert [(*one[:2], one[4]) for one in found] == [(*one[:2], one[4]) for one in expected]
    assert [one[2] for one in found] == pytest.approx([one[2] for one in expected], rel=rel)
    for rank in range(by_loop.world_size):
        losses = [
            [event["loss"] for event in training.events("epoch", rank)]
            for training in (by_lightning, by_loop)
        ]
        assert losses[0] == pytest.approx(losses[1], rel=rel)
        samples = [
            sum(event["samples"] for event in training.events("steps", rank))
            for training in (by_lightning, by_loop)
        ]
        assert samples[0] == samples[1]


SETTINGS = {
    "ddp with accumulation, workers, max_steps, and seldom evaluated": {
        "data": {"workers": 1},
        "train": {
            "accumulate": 2,
            "schedule": "cosine",
            "clip_norm": 0.1,
            "max_steps": 10,
            "epochs": 3,
            "evaluate_every_epochs": 2,
            "optimizer": "sgd",
            "warmup_steps": 3,
        },
    },
    "fp16-mixed": {"train": {"epochs": 1, "clip_norm": 0.1, "precision": "fp16-mixed"}},
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_two_ranks_train_as_the_torch_loop_does(train_whole, make_job, lightning_job, setting):
    by_loop = train_whole(make_job(**setting), 2)
    by_lightning = train_whole(lightning_job(**setting), 2)
    assert_trained_alike(
        by_lightning, by_loop, rel=0.03 if "precision" in setting["train"] else 1e-3
    )
    for rank in range(2):
        assert held(by_lightning, rank) == held(by_loop, rank)


SEVERAL_BLOCKS = {"model": {"name": "mlp", "args": {"hidden": [1100, 64]}}}


def test_fsdp_trains_as_the_torch_loop_does_and_holds_as_little_in_the_summary_too(
    train_ranks, make_job, lightning_job
):
    train = {"accumulate": 2, "clip_norm": 0.1, "epochs": 1}
    by_loop = train_ranks(make_job("fsdp", **SEVERAL_BLOCKS, train=train), 2)
    job = lightning_job("fsdp", **SEVERAL_BLOCKS, train=train)
    by_lightning = train_ranks(job, 2)
    assert_trained_alike(by_lightning, by_loop)
    for rank in range(2):
        assert [event["when"] for event in by_lightning.events("memory", rank)] == [
            "first_step",
            "end",
        ]
        assert held(by_lightning, rank) == held(by_loop, rank)
    files.write_json(by_lightning.run.spec_file, {"job": job_to_dict(job)})
    [run] = summarize([by_lightning.run], {}).runs
    assert run.model_states.total_bytes == sum(held(by_lightning, 0)[0])
    assert by_lightning.events("memory")[-1]["peak_bytes"] > run.model_states.total_bytes


def held(training, rank):
    keys = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
    return [tuple(event[key] for key in keys) for event in training.events("memory", rank)]


def test_fsdp_goes_on_from_its_checkpoint(train_ranks, lightning_job):
    job = lightning_job("fsdp", **SEVERAL_BLOCKS, train={"batch_size": 26})  # 4 steps of an epoch
    whole = train_ranks(job, 2)
    stopped = train_ranks(job, 2, stop_after=3)
    assert stopped.exit_codes == [75, 75], stopped.log()
    resumed = train_ranks(job, 2, run=stopped.run, attempt=1)
    assert resumed.exit_codes == [0, 0], resumed.log(attempt=1)
    assert resumed.events("resume", attempt=1)[0]["exact"]
    assert_same_weights(resumed, whole)


def test_it_records_what_the_torch_loop_records_and_lightning_itself_says_nothing(
    train_ranks, lightning_job
):
    job = lightning_job(checkpoint={"every_steps": 3}, train={"schedule": "cosine"})
    done = train_ranks(job, 2)
    assert done.exit_codes == [0, 0], done.log()
    [setup] = done.events("setup")
    assert (setup["train_samples"], setup["test_samples"]) == (203, 131)
    assert (setup["steps_per_epoch"], setup["total_steps"]) == (STEPS, 2 * STEPS)
    for rank in range(2):
        windows = done.events("steps", rank)
        assert sum(window["steps"] for window in windows) == 2 * STEPS
        phases = {phase for window in windows for phase in window["phases_s"]}
        assert {"data_wait", "forward_backward", "exposed_communication", "optimizer"} <= phases
    assert sum(w["samples"] for rank in (0, 1) for w in done.events("steps", rank)) == 2 * 203
    assert [event["epoch"] for event in done.events("epoch")] == [1, 2]
    assert [event["step"] for event in done.events("checkpoint")] == [3, 6, 7, 9, 12, 14]
    assert [path.name for path in done.checkpoints()] == [
        "step-00000014.ckpt",
        "step-00000012.ckpt",
    ]
    assert 0 < done.events("steps")[-1]["learning_rate"] < 1e-3
    mean_loss = done.events("epoch")[-1]["loss"]
    assert f"epoch 2/2  loss {mean_loss:.4f} (rank 0)  accuracy " in done.log()

    assert all(line.startswith("epoch ") for line in done.log().splitlines()), done.log()
    assert done.log(1) == ""


def test_a_training_that_stops_around_an_epochs_end_and_at_the_very_end_goes_on_exactly(
    train_ranks, train_whole, lightning_job
):
    """With workers, and a checkpoint that is due at a stop anyway."""
    job = lightning_job(data={"workers": 1}, checkpoint={"every_steps": 3})
    whole = train_whole(job, 2)
    stops = [3, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS]
    run, begun, evaluated, ended = None, 0, [], []
    for attempt, stop in enumerate([*stops, None]):
        steps = stop and stop - begun
        life = train_ranks(job, 2, run=run, attempt=attempt, stop_after=steps)
        run = life.run
        assert life.exit_codes == ([0, 0] if stop is None else [75, 75]), life.log(attempt=attempt)
        if attempt:
            [event] = life.events("resume", attempt=attempt)
            assert (event["step"], event["exact"]) == (begun, True)
        if stop is not None:
            assert life.state()["position"]["step"] == stop
            for rank in range(2):
                windows = life.events("steps", rank, attempt)
                assert windows[-1]["step"] == stop
                assert sum(window["steps"] for window in windows) == stop - begun
            begun = stop
        evaluated += scores(life, attempt)
        ended += [event["epoch"] for event in life.events("epoch", attempt=attempt)]
    assert_same_weights(life, whole)
    assert evaluated == scores(whole)
    assert ended == [event["epoch"] for event in whole.events("epoch")]


def test_a_killed_training_goes_on_with_another_number_of_ranks(train_ranks, lightning_job):
    job = lightning_job(checkpoint={"every_steps": 3, "every_epochs": 0})
    before = train_ranks(job, 2, kill_at_step=11)
    resumed = train_ranks(job, 4, run=before.run, attempt=1)
    assert resumed.exit_codes == [0] * 4, resumed.log(attempt=1)
    [event] = resumed.events("resume", attempt=1)
    assert (event["exact"], event["world_size_before"], event["step"]) == (False, 2, 9)
    # 2 steps of 2 x 16 are done: the epoch goes on after the first of 4 x 16.
    left = sum(w["samples"] for r in range(4) for w in resumed.events("steps", r, attempt=1))
    assert left == 203 - 64
    assert resumed.state()["position"] == {"step": 12, "epoch": 2, "samples": 0}


def test_a_checkpoint_of_the_other_trainer_is_refused_by_name(train_ranks, make_job, lightning_job):
    before = train_ranks(make_job(train={"max_steps": 1}), 1)
    refused = train_ranks(lightning_job(checkpoint={"resume": str(before.run.path)}), 1)
    assert refused.exit_codes == [1]
    assert f"{before.checkpoints()[0]} is not a checkpoint that" in refused.log()
