"""A training that is asked to stop saves a checkpoint at that very step, and goes on exactly."""

import torch

STEPS = 13  # of an epoch of 203 samples in batches of 16


def stop_and_go_on(train_ranks, job, world_size, *stops):
    """Train in one life, and in several; each but the last stops where it is asked to, and all
    together come to the same."""
    whole = train_ranks(job, world_size)
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
        windows = life.events("steps", attempt=attempt)
        assert sum(window["steps"] for window in windows) == stop - begun
        assert f"stopped at step {stop}" in life.log(attempt=attempt)
        begun = stop
    found, expected = life.weights(), whole.weights()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    scores = [[(e["epoch"], e["loss"]) for e in es] for es in (evaluated, whole.events("evaluate"))]
    assert scores[0] == scores[1]


def test_a_stop_within_accumulated_batches_of_workers_at_a_step_that_is_saved_too(
    train_ranks, make_job
):
    # An epoch must have more than 3 steps.
    job = make_job(
        train={"schedule": "cosine", "batch_size": 4, "accumulate": 3},
        data={"train_samples": 101, "workers": 2},
        checkpoint={"every_steps": 3},
    )
    stop_and_go_on(train_ranks, job, 2, 3)


def test_stopping_at_an_epochs_end_and_at_the_last_step_loses_no_evaluation(train_ranks, make_job):
    stop_and_go_on(train_ranks, make_job(train={"max_steps": 20}), 1, STEPS, 20)


def test_a_training_that_ends_before_it_is_to_stop_is_done(train_ranks, make_job):
    done = train_ranks(make_job(train={"max_steps": 2}), 1, stop_after=3)
    assert done.exit_codes == [0]
