"""A training that is asked to stop saves a checkpoint at that very step, and goes on exactly."""

import pytest
import torch

STEPS = 7  # of an epoch of 203 samples on 2 ranks of 16


def weights_are_equal(found, expected):
    found, expected = found.weights(), expected.weights()
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


def stop_and_go_on(train_ranks, job, world_size, *stops):
    """Train in several lives; asserts that each but the last stopped where it was asked to."""
    run, begun, evaluated = None, 0, []
    for attempt, stop in enumerate([*stops, None]):
        steps = stop and stop - begun
        life = train_ranks(job, world_size, run=run, attempt=attempt, stop_after=steps)
        run = life.run
        code = 0 if stop is None else 75
        assert life.exit_codes == [code] * world_size, life.log(attempt=attempt)
        if attempt:
            [event] = life.events("resume", attempt=attempt)
            assert (event["step"], event["exact"]) == (begun, True)
        evaluated += life.events("evaluate", attempt=attempt)
        if stop is None:
            continue
        assert life.state()["position"]["step"] == stop
        for rank in range(world_size):
            windows = life.events("steps", rank, attempt)
            assert windows[-1]["step"] == stop
            assert sum(window["steps"] for window in windows) == stop - begun
        assert f"stopped at step {stop}" in life.log(attempt=attempt)
        begun = stop
    return life, evaluated


SETTINGS = {
    "1 rank": (1, {}),
    "4 ranks": (4, {}),
    "accumulation, workers, saved at that step too": (
        2,
        {"train": {"accumulate": 3}, "data": {"workers": 2}, "checkpoint": {"every_steps": 3}},
    ),
    "nothing saved otherwise": (2, {"checkpoint": {"every_epochs": 0}}),
}


@pytest.mark.parametrize(("world_size", "setting"), SETTINGS.values(), ids=SETTINGS)
def test_a_stopped_training_goes_on_to_the_weights_of_one_that_never_stopped(
    train_ranks, train_whole, make_job, world_size, setting
):
    # An epoch must have more than 3 steps, whatever the number of ranks.
    train = {"schedule": "cosine", "batch_size": 4, **setting.get("train", {})}
    data = {"train_samples": 101, **setting.get("data", {})}
    job = make_job(**{**setting, "train": train, "data": data})
    whole = train_whole(job, world_size)
    resumed, evaluated = stop_and_go_on(train_ranks, job, world_size, 3)
    assert resumed.weights()
    if job.checkpoint.every_epochs:
        assert weights_are_equal(resumed, whole)
    assert losses(evaluated) == losses(whole.events("evaluate"))


def test_stopping_again_and_again_around_an_epochs_end_loses_no_evaluation(
    train_ranks, train_whole, make_job
):
    job = make_job()
    whole = train_whole(job, 2)
    stops = [4, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS]
    resumed, evaluated = stop_and_go_on(train_ranks, job, 2, *stops)
    assert weights_are_equal(resumed, whole)
    assert losses(evaluated) == losses(whole.events("evaluate"))


def losses(evaluated):
    return [(event["epoch"], event["loss"]) for event in evaluated]


def test_stopping_at_the_last_of_max_steps_leaves_the_evaluation_for_later(
    train_ranks, train_whole, make_job
):
    job = make_job(train={"max_steps": 10})
    whole = train_whole(job, 2)
    resumed, evaluated = stop_and_go_on(train_ranks, job, 2, 10)
    assert weights_are_equal(resumed, whole)
    assert losses(evaluated) == losses(whole.events("evaluate"))


def test_a_training_that_ends_before_it_is_to_stop_is_done(train_ranks, make_job):
    done = train_ranks(make_job(), 2, stop_after=2 * STEPS + 1)
    assert done.exit_codes == [0, 0]
