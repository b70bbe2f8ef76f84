import pytest
import torch

WORLD_SIZES = [1, 4]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_killed_training_resumes_to_the_weights_of_an_uninterrupted_one(
    train_ranks, train_whole, make_job, world_size
):
    job = make_job(train={"schedule": "cosine"}, checkpoint={"every_steps": 2})
    whole = train_whole(job, world_size)
    in_second_epoch = whole.state()["position"]["step"] // 2 + 3
    killed = train_ranks(job, world_size, kill_at_step=in_second_epoch)
    assert set(killed.exit_codes) & {-9, 1}
    assert killed.state()["position"]["samples"] > 0
    resumed = train_ranks(job, world_size, run=killed.run, attempt=1)
    assert resumed.exit_codes == [0] * world_size, resumed.log(attempt=1)
    _assert_same(resumed.weights(), whole.weights())
    [event] = resumed.events("resume", attempt=1)
    assert event["exact"]
    assert resumed.events("evaluate", attempt=1)[-1]["loss"] == whole.events("evaluate")[-1]["loss"]


def test_resume_at_another_world_size_goes_on_and_says_that_it_is_not_exact(train_ranks, make_job):
    job = make_job(checkpoint={"every_steps": 3, "every_epochs": 0})
    before = train_ranks(job, 2, kill_at_step=11)
    position = before.state()["position"]
    assert position == {"step": 9, "epoch": 1, "samples": 2 * 32}
    resumed = train_ranks(job, 3, run=before.run, attempt=1)
    assert resumed.exit_codes == [0, 0, 0], resumed.log(attempt=1)
    [event] = resumed.events("resume", attempt=1)
    assert event["exact"] is False
    assert "not bit for bit exact: world_size 2, now 3" in resumed.log(attempt=1)
    left = sum(w["samples"] for r in range(3) for w in resumed.events("steps", r, attempt=1))
    assert left == 203 - position["samples"]


def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(
    train_ranks, train_whole, make_job
):
    whole = train_whole(make_job(), 2)
    job = make_job(checkpoint={"every_steps": 2, "keep": 3})
    killed = train_ranks(job, 2, kill_at_step=11)
    newest, before, *_ = killed.checkpoints()
    _flip_a_bit(newest)
    resumed = train_ranks(job, 2, run=killed.run, attempt=1)
    assert resumed.exit_codes == [0, 0]
    assert f"warning: {newest.name} is damaged" in resumed.log(attempt=1)
    assert newest.name in resumed.events("note", attempt=1)[0]["message"]
    assert resumed.events("resume", attempt=1)[0]["checkpoint"] == before.name
    _assert_same(resumed.weights(), whole.weights())


def test_checkpoint_resume_names_a_run_a_folder_or_a_file(train_ranks, train_whole, make_job):
    first = train_ranks(make_job(train={"epochs": 1}), 1)
    whole = train_whole(make_job(), 1)
    newest = first.checkpoints()[0]
    for name in (first.run.path, first.run.checkpoints_folder, newest):
        resumed = train_ranks(make_job(checkpoint={"resume": str(name)}), 1)
        assert resumed.events("resume")[0]["checkpoint"] == newest.name
        _assert_same(resumed.weights(), whole.weights())


def test_a_checkpoint_of_another_model_is_refused_by_name(train_ranks, make_job):
    first = train_ranks(make_job(train={"max_steps": 1}), 1)
    other = make_job(model={"name": "mlp"}, checkpoint={"resume": str(first.run.path)})
    refused = train_ranks(other, 1)
    assert refused.exit_codes == [1]
    assert "belongs to another training: model.name fashion_cnn, now mlp" in refused.log()


def test_a_finished_training_that_starts_again_trains_no_further(train_ranks, make_job):
    job = make_job(train={"epochs": 1})
    first = train_ranks(job, 2)
    weights = first.weights()
    again = train_ranks(job, 2, run=first.run, attempt=1)
    assert again.exit_codes == [0, 0]
    assert again.events("steps", attempt=1) == []
    _assert_same(again.weights(), weights)


def test_an_attempt_that_is_out_of_date_saves_nothing(train_ranks, make_job):
    done = train_ranks(make_job(checkpoint={"every_steps": 1}), 2, overtaken=True)
    assert 1 in done.exit_codes
    assert "a newer attempt of this run has begun" in done.log()
    assert list(done.run.checkpoints_folder.iterdir()) == []


def _flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _assert_same(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
