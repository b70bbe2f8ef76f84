import math

import torch
from full_disks import fill

from hpcdist.job.load import load_job
from hpcdist.runs.run import Run


def test_two_ranks_reach_an_accuracy_of_94_percent_on_digits(train_ranks):
    done = train_ranks(load_job("ddp", overrides=["train.epochs=5"]).job, 2)
    assert done.exit_codes == [0, 0], done.log()
    assert done.events("evaluate")[-1]["accuracy"] >= 0.94


def test_a_training_records_its_setup_steps_evaluations_and_epochs(train_ranks, make_job):
    done = train_ranks(make_job(), 2)
    assert done.exit_codes == [0, 0], done.log()
    [setup] = done.events("setup")
    assert setup["total_steps"] == 14
    assert sum(window["steps"] for window in done.events("steps")) == 14
    assert sum(w["samples"] for rank in (0, 1) for w in done.events("steps", rank)) == 2 * 203
    assert {"forward_backward", "exposed_communication", "optimizer"} <= set(
        done.events("steps")[0]["phases_s"]
    )
    assert [event["samples"] for event in done.events("evaluate")] == [131, 131]
    assert [event["epoch"] for event in done.events("epoch")] == [1, 2]
    assert all(window["learning_rate"] == 1e-3 for window in done.events("steps"))
    mean_loss = done.events("epoch")[-1]["loss"]
    assert f"epoch 2/2  loss {mean_loss:.4f} (rank 0)  accuracy " in done.log()
    assert done.log(1) == ""


def test_ranks_and_accumulated_batches_train_like_one_large_batch(train_ranks, make_job):
    """The last batch of an epoch holds 2 samples: some ranks have none."""

    def train(ranks, **train):
        sections = {
            "model": {"args": {"dropout": 0.0}},
            "data": {"train_samples": 50, "test_samples": 300},
            # adam would blow up rounding of gradients that are nearly zero
            "train": {"optimizer": "sgd", "lr": 0.05, "epochs": 2, **train},
        }
        return train_ranks(make_job(**sections), ranks)

    whole, parts = train(1, batch_size=48), train(4, batch_size=4, accumulate=3)
    expected = whole.weights()
    for name, value in parts.weights().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)
    assert [event["samples"] for event in parts.events("evaluate")] == [300, 300]
    assert parts.events("setup")[0]["total_steps"] == 2 * 2
    assert "exposed_communication" not in whole.events("steps")[0]["phases_s"]


def test_max_steps_end_a_training_in_an_epoch_and_its_end_is_saved_when_steps_are(
    train_ranks, make_job
):
    every = {"every_epochs": 0, "every_steps": 5}
    done = train_ranks(make_job(train={"max_steps": 9}, checkpoint=every), 1)
    assert done.exit_codes == [0]
    position = done.state()["position"]
    assert (position["step"], position["epoch"], position["samples"]) == (9, 0, 9 * 16)
    assert done.events("evaluate")[-1]["step"] == 9
    assert [event["step"] for event in done.events("checkpoint")] == [5, 9]


def test_a_training_goes_through_with_other_settings(train_ranks, make_job):
    train = {"precision": "bf16-mixed", "optimizer": "adam", "warmup_steps": 3}
    train["schedule"] = "cosine"
    nothing = {"checkpoint": {"every_epochs": 0, "every_steps": 0}, "record": {"enabled": False}}
    job = make_job("single", model={"image_size": 13}, train=train, **nothing)
    done = train_ranks(job, 1)
    assert done.exit_codes == [0], done.log()
    assert len(done.events("epoch")) == 2
    assert all(math.isfinite(event["loss"]) for event in done.events("epoch"))
    assert done.checkpoints() == []
    assert done.events("steps") == []


def test_batch_norm_trains_when_ranks_get_one_sample_or_none(train_ranks, make_job, own_model):
    sections = {
        "model": {"name": own_model},
        "data": {"train_samples": 13, "test_samples": 5},
        "train": {"batch_size": 3, "epochs": 2},
    }
    done = train_ranks(make_job(**sections), 4)
    assert done.exit_codes == [0] * 4, [done.log(rank) for rank in range(4)]


def test_a_full_disk_ends_no_training_that_saves_nothing(train_ranks, make_job, small_disk):
    disk = small_disk(400)
    run = Run.create(disk, "test")
    fill(disk)
    done = train_ranks(make_job(checkpoint={"every_epochs": 0}), 2, run=run)
    assert done.exit_codes == [0, 0]
    assert done.log() == ""
