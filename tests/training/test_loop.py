import torch
from full_disks import fill

from hpcdist.job.load import load_job
from hpcdist.runs.run import Run


def test_two_ranks_reach_an_accuracy_of_97_percent_on_digits(train_ranks):
    done = train_ranks(load_job("ddp", overrides=["train.epochs=10"]).job, 2)
    assert done.exit_codes == [0, 0], done.log()
    assert done.events("evaluate")[-1]["accuracy"] >= 0.97


def test_a_training_records_its_setup_steps_evaluations_and_epochs(train_whole, make_job):
    done = train_whole(make_job(), 2)
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


def test_ranks_together_have_the_gradients_of_one_process_with_the_same_global_batch(
    train_ranks, make_job
):
    # The last batch of an epoch holds 2 samples: some ranks have none.
    # The rate is too small to change a weight: later steps do not carry on earlier roundings.
    whole, parts = (
        train_ranks(
            make_job(**_without_dropout(train_samples=50, lr=1e-30, batch_size=48 // ranks)),
            ranks,
            keep_gradients=True,
        )
        for ranks in (1, 4)
    )
    expected = whole.gradients()
    assert len(expected) == 2 * 2
    assert all(gradient.any() for step in expected for gradient in step)
    for rank in range(4):
        torch.testing.assert_close(parts.gradients(rank), expected, rtol=1e-4, atol=1e-6)
    assert _scores(parts) == _scores(whole)
    assert "exposed_communication" not in whole.events("steps")[0]["phases_s"]


def test_accumulated_batches_train_like_one_large_batch(train_ranks, train_whole, make_job):
    whole = train_whole(make_job(**_without_dropout(batch_size=48)), 1)
    pieces = train_ranks(make_job(**_without_dropout(batch_size=8, accumulate=3)), 2)
    expected = whole.weights()
    for name, value in pieces.weights().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)
    assert pieces.events("setup")[0]["total_steps"] % 5 == 0


def test_the_same_seed_gives_the_same_weights_and_another_gives_others(train_ranks, make_job):
    first, second, other = (
        train_ranks(make_job(train={"seed": seed, "max_steps": 3}), 1).weights()
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_max_steps_end_a_training_in_an_epoch_and_its_end_is_saved_when_steps_are(
    train_ranks, make_job
):
    every = {"every_epochs": 0, "every_steps": 5}
    done = train_ranks(make_job(train={"max_steps": 9}, checkpoint=every), 2)
    assert done.exit_codes == [0, 0]
    position = done.state()["position"]
    assert (position["step"], position["epoch"], position["samples"]) == (9, 1, 2 * 32)
    assert done.events("evaluate")[-1]["step"] == 9
    assert [event["step"] for event in done.events("checkpoint")] == [5, 9]


def test_what_is_not_to_be_saved_or_recorded_is_not(train_ranks, make_job):
    nothing = {"checkpoint": {"every_epochs": 0, "every_steps": 0}, "record": {"enabled": False}}
    done = train_ranks(make_job(**nothing), 1)
    assert done.exit_codes == [0]
    assert done.checkpoints() == []
    assert done.events("steps") == []
    assert len(done.events("epoch")) == 2


def test_a_training_goes_through_with_other_settings(train_ranks, make_job):
    train = {"precision": "bf16-mixed", "optimizer": "adam", "warmup_steps": 3}
    train["schedule"] = "cosine"
    done = train_ranks(make_job("single", model={"image_size": 13}, train=train), 1)
    assert done.exit_codes == [0], done.log()
    assert all(value.isfinite().all() for value in done.weights().values())


def test_batch_norm_trains_when_ranks_get_one_sample_or_none(train_ranks, make_job, own_model):
    sections = {
        "model": {"name": own_model},
        "data": {"train_samples": 13, "test_samples": 5},
        "train": {"batch_size": 3, "epochs": 2},
    }
    done = train_ranks(make_job(**sections), 4)
    assert done.exit_codes == [0] * 4, [done.log(rank) for rank in range(4)]


def _without_dropout(train_samples=203, **train):
    return {
        "model": {"args": {"dropout": 0.0}},
        "data": {"train_samples": train_samples, "test_samples": 300},
        # sgd: adam would blow up rounding of gradients that are nearly zero
        "train": {"optimizer": "sgd", "lr": 0.05, "epochs": 2, **train},
    }


def _scores(training):
    return [(e["loss"], e["accuracy"], e["samples"]) for e in training.events("evaluate")]


def test_a_full_disk_ends_no_training_that_saves_nothing(train_ranks, make_job, small_disk):
    disk = small_disk(400)
    run = Run.create(disk, "test")
    fill(disk)
    done = train_ranks(make_job(checkpoint={"every_epochs": 0}), 2, run=run)
    assert done.exit_codes == [0, 0]
    assert done.log() == ""
