"""The job `lightning`: a plain Lightning training that is recorded, stopped, and goes on."""

import pytest
import torch

STEPS = 6  # whole batches of an epoch of 203 samples on 2 ranks of 16
pytestmark = pytest.mark.usefixtures("lightning_is_imported")


@pytest.fixture
def lightning_job(make_job):
    return lambda strategy="auto", **sections: make_job(strategy, "lightning", **sections)


def counted(training, rank=0, attempt=0):
    """The steps and samples that a rank has recorded."""
    windows = training.events("steps", rank, attempt)
    return sum(w["steps"] for w in windows), sum(w["samples"] for w in windows)


def names(training):
    return sorted(path.name for path in training.run.checkpoints_folder.iterdir())


def test_a_training_on_two_ranks_records_what_the_torch_loop_records(train_ranks, lightning_job):
    done = train_ranks(lightning_job("ddp", checkpoint={"every_steps": 4, "keep": 2}), 2)
    assert done.exit_codes == [0, 0], done.log()
    assert done.events("setup")[0]["total_steps"] == 2 * STEPS
    for rank in range(2):
        assert counted(done, rank) == (2 * STEPS, 2 * STEPS * 16)
        phases = {phase for window in done.events("steps", rank) for phase in window["phases_s"]}
        expected = {"data_wait", "forward_backward", "optimizer", "checkpoint"}
        assert expected | {"exposed_communication"} <= phases
    assert [event["samples"] for event in done.events("evaluate")] == [131, 131]
    assert [event["epoch"] for event in done.events("epoch")] == [1, 2]
    assert names(done)[-1] == f"step-{2 * STEPS:08d}.ckpt"
    assert all(line.startswith("epoch ") for line in done.log().splitlines()), done.log()
    assert done.log(1) == ""


def test_settings_that_lightning_is_given_reach_it(train_ranks, lightning_job):
    train = {
        "accumulate": 2,
        "schedule": "cosine",
        "max_steps": 5,
        "epochs": 3,
        "optimizer": "sgd",
        "warmup_steps": 3,
        "precision": "bf16-mixed",
    }
    done = train_ranks(lightning_job(data={"workers": 1}, train=train), 1)
    assert done.exit_codes == [0], done.log()
    assert counted(done) == (5, 5 * 2 * 16)
    assert 0 < done.events("steps")[-1]["learning_rate"] < 1e-3
    assert done.events("setup")[0]["total_steps"] == 5


def test_a_training_that_stops_goes_on_with_other_ranks_without_the_damaged_checkpoint(
    train_ranks, lightning_job
):
    job = lightning_job(checkpoint={"every_steps": 3, "every_epochs": 0})
    stopped = train_ranks(job, 2, stop_after=4)
    assert stopped.exit_codes == [75, 75], stopped.log()
    newest, older = stopped.checkpoints()
    assert newest.name == "step-00000004.ckpt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    resumed = train_ranks(job, 3, run=stopped.run, attempt=1)
    assert resumed.exit_codes == [0] * 3, resumed.log(attempt=1)
    [event] = resumed.events("resume", attempt=1)
    found = (event["checkpoint"], event["step"], event["exact"])
    assert found == (older.name, 3, False)
    assert f"{newest.name} is damaged" in resumed.log(attempt=1)
    assert resumed.events("epoch", attempt=1)[-1]["epoch"] == 2


def test_patience_ends_a_training_and_the_best_is_kept(train_ranks, lightning_job):
    train = {"epochs": 9, "lr": 1e-30, "patience": 2, "keep_best": True, "monitor": "accuracy"}
    done = train_ranks(lightning_job(train=train), 1)
    assert done.exit_codes == [0], done.log()
    assert len(done.events("epoch")) == 3  # the first is best, and two are no better
    assert "best.ckpt" in names(done)


def test_a_checkpoint_of_the_other_trainer_is_refused_by_name(train_ranks, make_job, lightning_job):
    for first, second in ((make_job, lightning_job), (lightning_job, make_job)):
        before = train_ranks(first(train={"max_steps": 1}), 1)
        refused = train_ranks(second(checkpoint={"resume": str(before.run.path)}), 1)
        assert refused.exit_codes == [1]
        assert f"{before.checkpoints()[0]} is not a checkpoint that" in refused.log()


def test_a_checkpoint_that_would_run_code_is_refused(train_ranks, lightning_job, tmp_path):
    path = tmp_path / "step-00000003.ckpt"
    torch.save({"state_dict": RunsCode()}, path)
    refused = train_ranks(lightning_job(checkpoint={"resume": str(path)}), 1)
    assert refused.exit_codes == [1]
    assert "Unsupported global" in refused.log() or "weights_only" in refused.log()
    assert not (tmp_path / "ran").exists()


class RunsCode:
    def __reduce__(self):
        return exec, ("import os; os._exit(3)",)
