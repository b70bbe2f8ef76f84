"""A training that is asked to stop saves a checkpoint at that very step, and goes on exactly."""

import pytest
import torch

STEPS = 7  # of an epoch of 203 samples on 2 ranks of 16


def weights_are_equal(found, expected):
    found, expected = found.weights(), expected.weights()
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


def stop_and_go_on(train_ranks, job, world_size, stop_after):
    """The training in two lives; asserts that the first stopped where it was asked to."""
    stopped = train_ranks(job, world_size, stop_after=stop_after)
    assert stopped.exit_codes == [75] * world_size, stopped.log()
    assert stopped.state()["position"]["step"] == stop_after
    for rank in range(world_size):
        [event] = stopped.events("stop", rank)
        assert event["step"] == stop_after
        recorded = sum(window["steps"] for window in stopped.events("steps", rank))
        assert recorded == stop_after
    assert f"stopped at step {stop_after}" in stopped.log()
    resumed = train_ranks(job, world_size, run=stopped.run, attempt=1)
    assert resumed.exit_codes == [0] * world_size, resumed.log(attempt=1)
    [event] = resumed.events("resume", attempt=1)
    assert (event["step"], event["exact"]) == (stop_after, True)
    return resumed


SETTINGS = {
    "accumulation": {"train": {"accumulate": 3}},
    "workers": {"data": {"workers": 2}},
    "nothing saved otherwise": {"checkpoint": {"every_epochs": 0}},
    "saved at that step too": {"checkpoint": {"every_steps": 3}},
}


@pytest.mark.parametrize(
    ("world_size", "setting"),
    [(1, {}), (2, {}), (4, {}), *((2, setting) for setting in SETTINGS.values())],
    ids=["1 rank", "2 ranks", "4 ranks", *SETTINGS],
)
def test_a_stopped_training_goes_on_to_the_weights_of_one_that_never_stopped(
    train_ranks, train_whole, make_job, world_size, setting
):
    sections = {"train": {"schedule": "cosine"}, **setting}
    # An epoch of 203 samples must have more than 3 steps, whatever the number of ranks.
    sections["train"] = {"schedule": "cosine", "batch_size": 4, **setting.get("train", {})}
    job = make_job(**sections)
    whole = train_whole(job, world_size)
    resumed = stop_and_go_on(train_ranks, job, world_size, 3)
    assert resumed.weights()
    if job.checkpoint.every_epochs:
        assert weights_are_equal(resumed, whole)
    assert resumed.events("evaluate", attempt=1)[-1]["loss"] == whole.events("evaluate")[-1]["loss"]


@pytest.mark.parametrize("stop_after", [STEPS - 1, STEPS, STEPS + 1, 2 * STEPS])
def test_stopping_around_an_epochs_end_loses_no_evaluation(
    train_ranks, train_whole, make_job, stop_after
):
    job = make_job()
    whole = train_whole(job, 2)
    resumed = stop_and_go_on(train_ranks, job, 2, stop_after)
    assert weights_are_equal(resumed, whole)
    both = resumed.events("evaluate") + resumed.events("evaluate", attempt=1)
    assert [(e["epoch"], e["loss"]) for e in both] == [
        (e["epoch"], e["loss"]) for e in whole.events("evaluate")
    ]


def test_stopping_at_the_last_of_max_steps_leaves_the_evaluation_for_later(
    train_ranks, train_whole, make_job
):
    job = make_job(train={"max_steps": 10})
    whole = train_whole(job, 2)
    resumed = stop_and_go_on(train_ranks, job, 2, 10)
    assert weights_are_equal(resumed, whole)
    assert resumed.events("evaluate", attempt=1)[-1]["loss"] == whole.events("evaluate")[-1]["loss"]


def test_a_training_that_ends_before_it_is_to_stop_is_done(train_ranks, make_job):
    done = train_ranks(make_job(), 2, stop_after=2 * STEPS + 1)
    assert done.exit_codes == [0, 0]
    assert done.events("stop") == []


def test_it_stops_again_and_again(train_ranks, train_whole, make_job):
    job = make_job()
    whole = train_whole(job, 2)
    run = train_ranks(job, 2, stop_after=4).run
    train_ranks(job, 2, run=run, attempt=1, stop_after=5)
    last = train_ranks(job, 2, run=run, attempt=2)
    assert last.exit_codes == [0, 0]
    assert weights_are_equal(last, whole)
