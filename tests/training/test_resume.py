"""A training goes on from a checkpoint: exactly where it can, and says where it cannot."""

import os

import msgspec
import pytest
import torch

from hpcdist.job.spec import Resources
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint.files import resume_candidates

WIDE = {"args": {"hidden": 1100, "dropout": 0.0}}


@pytest.fixture
def job(make_job):
    """A job with any strategy whose `train` and `checkpoint` sections can be added to."""

    def make(strategy="fsdp", checkpoint=None, **train):
        train = {"epochs": 1, "batch_size": 8, **train}
        every = {"every_steps": 3, **(checkpoint or {})}
        return make_job(strategy, model=WIDE, train=train, checkpoint=every)

    return make


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_killed_training_resumes_to_the_weights_of_an_uninterrupted_one(
    train_ranks, job, strategy
):
    whole = train_ranks(job(strategy), 2)
    killed = train_ranks(job(strategy, {"keep": 3}), 2, kill_at_step=8)
    assert killed.state()["position"]["samples"] > 0
    newest, before, *_ = killed.checkpoints()
    part = max(newest.glob("*.distcp"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    resumed = train_ranks(job(strategy), 2, run=killed.run, attempt=1)
    assert resumed.exit_codes == [0, 0], resumed.log(attempt=1)
    [event] = resumed.events("resume", attempt=1)
    assert (event["checkpoint"], event["exact"]) == (before.name, True)
    assert f"{newest.name} is damaged" in resumed.log(attempt=1)
    assert newest.name in resumed.events("note", attempt=1)[0]["message"]
    _assert_same(resumed.weights(), whole.weights())
    assert len(resumed.checkpoints()) == 2
    assert not [name for name in os.listdir(resumed.run.checkpoints_folder) if name[0] == "."]


def test_another_number_of_ranks_goes_on_and_says_that_it_is_not_exact(train_ranks, make_job):
    job = make_job(checkpoint={"every_steps": 3, "every_epochs": 0})
    before = train_ranks(job, 2, kill_at_step=11)
    position = before.state()["position"]
    assert (position["step"], position["epoch"], position["samples"]) == (9, 1, 2 * 32)
    resumed = train_ranks(job, 3, run=before.run, attempt=1)
    assert resumed.exit_codes == [0, 0, 0], resumed.log(attempt=1)
    [event] = resumed.events("resume", attempt=1)
    assert event["exact"] is False
    assert "not bit for bit exact: world_size 2, now 3" in resumed.log(attempt=1)
    left = sum(w["samples"] for r in range(3) for w in resumed.events("steps", r, attempt=1))
    assert left == 203 - position["samples"]


def test_ranks_that_are_left_take_the_steps_that_all_would_have_taken(train_ranks, job):
    of_three = msgspec.structs.replace(job("ddp", epochs=2), resources=Resources(nodes=3))
    whole = train_ranks(of_three, 3)
    before = train_ranks(of_three, 3, kill_at_step=6)
    done = before.state()["position"]["samples"]
    assert 0 < done < 203
    left = train_ranks(of_three, 2, run=before.run, attempt=1)
    assert left.exit_codes == [0, 0], left.log(attempt=1)
    ends = [{**each.state()["position"], "best": None} for each in (left, whole)]
    assert ends[0] == ends[1]
    for name, value in left.weights().items():  # sums in another order
        torch.testing.assert_close(value, whole.weights()[name], rtol=1e-3, atol=1e-5)
    counts = [[w["samples"] for w in left.events("steps", rank, attempt=1)] for rank in range(2)]
    assert sum(map(sum, counts)) == 2 * 203 - done


def test_a_checkpoint_is_taken_over_by_another_strategy(train_ranks, job):
    first = train_ranks(job("ddp", {"every_steps": 4}, max_steps=6), 2)
    _, at_step_4 = first.checkpoints()
    resume = {"resume": str(at_step_4)}
    further = train_ranks(job("fsdp", resume, max_steps=6), 2)
    assert further.exit_codes == [0, 0], further.log()
    for name, value in further.weights().items():  # Adam's moments were taken over, too
        torch.testing.assert_close(value, first.weights()[name], rtol=1e-3, atol=1e-5)
    resume = {"resume": str(further.checkpoints()[0])}
    taken = train_ranks(job("single", resume, max_steps=6), 1)
    assert taken.exit_codes == [0], taken.log()
    _assert_same(taken.weights(), further.weights())


def test_nodes_without_a_file_system_in_common_go_on_from_node_0s(
    train_ranks, make_job, tmp_path, monkeypatch
):
    """Rank 1 sees no checkpoint: it has a run directory of its own."""
    killed = train_ranks(make_job(checkpoint={"every_steps": 3}), 2, kill_at_step=11)
    found = checkpoint.find_start

    def find_start(context, resume):
        path = found(context, resume)
        return path if context.rank == 0 else tmp_path / "nowhere" / path.name

    monkeypatch.setattr(checkpoint, "find_start", find_start)
    resumed = train_ranks(make_job(), 2, run=killed.run, attempt=1)
    assert resumed.exit_codes == [0, 0], resumed.log(rank=1, attempt=1)
    assert [resumed.events("resume", r, attempt=1)[0]["step"] for r in range(2)] == [9, 9]


def test_checkpoint_resume_names_a_run_a_folder_or_a_checkpoint_of_this_model(
    train_ranks, make_job
):
    job = make_job(train={"epochs": 1})
    first = train_ranks(job, 1)
    newest, weights = first.checkpoints()[0], first.weights()
    for name in (first.run.path, first.run.checkpoints_folder, newest):
        assert resume_candidates(str(name))[0] == newest
    resume = {"resume": str(first.run.path)}
    resumed = train_ranks(make_job(checkpoint=resume), 1)
    assert resumed.events("resume")[0]["checkpoint"] == newest.name
    assert [event["epoch"] for event in resumed.events("epoch")] == [2]
    refused = train_ranks(make_job(model={"args": {"hidden": 9}}, checkpoint=resume), 1)
    assert refused.exit_codes == [1]
    assert "belongs to another training: model.args {}, now {'hidden': 9}" in refused.log()
    again = train_ranks(job, 1, run=first.run, attempt=1)  # it has finished, and trains no further
    assert again.exit_codes == [0]
    assert again.events("steps", attempt=1) == []
    _assert_same(again.weights(), weights)


def test_an_attempt_that_is_out_of_date_saves_nothing(train_ranks, job):
    done = train_ranks(job(max_steps=2), 2, overtaken=True)
    assert 1 in done.exit_codes
    assert "a newer attempt of this run has begun" in done.log()
    assert list(done.run.checkpoints_folder.iterdir()) == []


def test_patience_ends_a_training_and_what_was_best_is_known_after_a_restart(train_ranks, make_job):
    train = {"lr": 0.05, "patience": 3, "keep_best": True, "monitor": "accuracy"}
    job = make_job(train=train | {"epochs": 20, "batch_size": 32})
    whole = train_ranks(job, 1)
    scores = [(event["epoch"], event["accuracy"]) for event in whole.events("evaluate")]
    accuracies = [accuracy for _, accuracy in scores]
    best = accuracies.index(max(accuracies))
    assert len(scores) == best + 4 < 20  # the best, and three that are no better
    assert "without a better accuracy than" in whole.log()
    stopped = train_ranks(job, 1, kill_at_step=7 * (len(scores) - 1) + 3)
    resumed = train_ranks(job, 1, run=stopped.run, attempt=1)
    assert resumed.exit_codes == [0], resumed.log(attempt=1)
    found = [(e["epoch"], e["accuracy"]) for e in resumed.events("evaluate", attempt=1)]
    assert found == scores[-len(found) :]
    assert resumed.state()["position"] == whole.state()["position"]
    links = [run.checkpoints_folder / "best" for run in (whole.run, resumed.run)]
    step = whole.events("evaluate")[best]["step"]
    assert {link.readlink().name for link in links} == {f"step-{step:08d}.dcp"}


def _assert_same(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
