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


HALF = {"epochs": 1, "clip_norm": 0.1}
SETTINGS = {
    "ddp": {},
    "accumulation, and ddp's options": {
        "train": {
            "accumulate": 2,
            "schedule": "cosine",
            "clip_norm": 0.1,
            "static_graph": True,
            "gradient_as_bucket_view": False,
        }
    },
    "bf16-mixed": {"train": {**HALF, "precision": "bf16-mixed"}},
    "fp16-mixed": {"train": {**HALF, "precision": "fp16-mixed"}},
    "bf16-true": {"train": {**HALF, "precision": "bf16-true"}},
    "max_steps, with workers, seldom evaluated": {
        "data": {"workers": 1},
        "train": {
            "max_steps": 16,
            "epochs": 3,
            "evaluate_every_epochs": 2,
            "optimizer": "sgd",
            "warmup_steps": 3,
        },
    },
}


def precision_of(setting):
    """The relative deviation of losses that its number format makes."""
    return 1e-3 if setting["train"].get("precision", "fp32") == "fp32" else 0.03


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_two_ranks_train_as_the_torch_loop_does(train_whole, make_job, lightning_job, setting):
    by_loop = train_whole(make_job(**setting), 2)
    by_lightning = train_whole(lightning_job(**setting), 2)
    assert_trained_alike(by_lightning, by_loop, rel=precision_of({"train": {}, **setting}))
    for rank in range(2):
        assert held(by_lightning, rank) == held(by_loop, rank)


def test_a_single_rank_does_so_too(train_ranks, train_whole, make_job, lightning_job):
    by_loop = train_whole(make_job(), 1)
    assert_trained_alike(train_ranks(lightning_job(), 1), by_loop)


@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
def test_recomputed_blocks_count_a_batch_once_as_in_the_torch_loop(
    train_ranks, make_job, lightning_job, own_model, strategy
):
    sections = {
        "model": {"name": own_model},
        "train": {"epochs": 1, "activation_checkpointing": True},
    }
    by_loop = train_ranks(make_job("ddp" if strategy == "auto" else "fsdp", **sections), 2)
    by_lightning = train_ranks(lightning_job(strategy, **sections), 2)
    assert_trained_alike(by_lightning, by_loop)
    for rank in range(2):
        assert held(by_lightning, rank) == held(by_loop, rank)


OF_FSDP = {
    "several blocks": {"train": {"accumulate": 2, "clip_norm": 0.1, "epochs": 1}},
    "fp16-mixed": {
        "train": {"precision": "fp16-mixed", "optimizer": "sgd", "clip_norm": 1.0, "max_steps": 3}
    },
    "bf16-true": {"train": {"precision": "bf16-true", "max_steps": 3}},
}
SEVERAL_BLOCKS = {"model": {"name": "mlp", "args": {"hidden": [1100, 64]}}}


@pytest.mark.parametrize("setting", OF_FSDP.values(), ids=OF_FSDP)
def test_fsdp_trains_as_the_torch_loop_does_and_holds_as_little_in_the_summary_too(
    train_ranks, make_job, lightning_job, setting
):
    sections = {**SEVERAL_BLOCKS, **setting}
    by_loop = train_ranks(make_job("fsdp", **sections), 2)
    job = lightning_job("fsdp", **sections)
    by_lightning = train_ranks(job, 2)
    assert_trained_alike(by_lightning, by_loop, rel=precision_of(setting))
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


def test_fsdp_goes_on_from_its_checkpoint_and_from_one_of_ddp(train_ranks, lightning_job):
    sections = {**SEVERAL_BLOCKS, "train": {"batch_size": 26}}  # 4 steps of an epoch
    job = lightning_job("fsdp", **sections)
    whole = train_ranks(job, 2)
    stopped = train_ranks(job, 2, stop_after=3)
    assert stopped.exit_codes == [75, 75], stopped.log()
    resumed = train_ranks(job, 2, run=stopped.run, attempt=1)
    assert resumed.exit_codes == [0, 0], resumed.log(attempt=1)
    assert resumed.events("resume", attempt=1)[0]["exact"]
    assert_same_weights(resumed, whole)
    half = {**SEVERAL_BLOCKS, "train": {"batch_size": 26, "epochs": 1}}
    by_ddp = train_ranks(lightning_job("ddp", **half), 2)
    after_ddp = train_ranks(
        lightning_job("fsdp", **sections, checkpoint={"resume": str(by_ddp.run.path)}), 2
    )
    assert after_ddp.exit_codes == [0, 0], after_ddp.log()
    found, expected = after_ddp.weights(), whole.weights()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
def test_a_model_with_other_outputs_than_classes_is_refused_before_training(
    train_ranks, lightning_job, strategy, tmp_path, monkeypatch
):
    (tmp_path / "seven.py").write_text(SEVEN)
    monkeypatch.chdir(tmp_path)
    refused = train_ranks(lightning_job(strategy, model={"name": "seven:Net"}), 2)
    assert refused.exit_codes == [1, 1]
    assert "for 2 images of 10 classes the model gives (2, 7)" in refused.log()
    assert refused.events("steps") == []


SEVEN = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 7))
"""


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


STOPS = {
    "accumulating": (2, {"train": {"accumulate": 2, "schedule": "cosine"}}),
    "at the last of max_steps": (10, {"train": {"max_steps": 10}}),
    "with workers, saved at that step too": (
        3,
        {"data": {"workers": 1}, "checkpoint": {"every_steps": 3}},
    ),
}


@pytest.mark.parametrize(("stop_after", "setting"), STOPS.values(), ids=STOPS)
def test_a_stopped_training_goes_on_to_the_weights_of_one_that_never_stopped(
    train_ranks, train_whole, lightning_job, stop_after, setting
):
    stop_and_go_on(train_ranks, train_whole, lightning_job(**setting), [stop_after])


def test_stopping_around_an_epochs_end_and_at_the_very_end_loses_no_evaluation(
    train_ranks, train_whole, lightning_job
):
    stops = [STEPS - 1, STEPS, STEPS + 1, 2 * STEPS]
    stop_and_go_on(train_ranks, train_whole, lightning_job(), stops)


def stop_and_go_on(train_ranks, train_whole, job, stops):
    """Train in several lives, and compare with a training in one."""
    whole = train_whole(job, 2)
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
                [event] = life.events("stop", rank, attempt)
                assert event["step"] == stop
                windows = life.events("steps", rank, attempt)
                assert sum(window["steps"] for window in windows) == stop - begun
            begun = stop
        evaluated += scores(life, attempt)
        ended += [event["epoch"] for event in life.events("epoch", attempt=attempt)]
    assert_same_weights(life, whole)
    assert evaluated == scores(whole)
    assert ended == [event["epoch"] for event in whole.events("epoch")]


def test_a_killed_training_goes_on_from_its_newest_checkpoint_that_is_whole(
    train_ranks, train_whole, lightning_job
):
    whole = train_whole(lightning_job(), 2)
    job = lightning_job(checkpoint={"every_steps": 2, "keep": 3})
    killed = train_ranks(job, 2, kill_at_step=11)
    newest, before, *_ = killed.checkpoints()
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    resumed = train_ranks(job, 2, run=killed.run, attempt=1)
    assert resumed.exit_codes == [0, 0], resumed.log(attempt=1)
    assert f"warning: {newest.name} is damaged" in resumed.log(attempt=1)
    assert resumed.events("resume", attempt=1)[0]["checkpoint"] == before.name
    assert_same_weights(resumed, whole)


def test_a_finished_training_trains_no_further_but_another_run_goes_on_from_it(
    train_ranks, train_whole, lightning_job
):
    whole = train_whole(lightning_job(), 2)
    job = lightning_job(train={"epochs": 1})
    first = train_ranks(job, 2)
    weights = first.weights()
    again = train_ranks(job, 2, run=first.run, attempt=1)
    assert again.exit_codes == [0, 0], again.log(attempt=1)
    assert again.events("steps", attempt=1) == []
    assert all(torch.equal(again.weights()[name], weights[name]) for name in weights)
    resumed = train_ranks(lightning_job(checkpoint={"resume": str(first.run.path)}), 2)
    assert resumed.exit_codes == [0, 0], resumed.log()
    assert_same_weights(resumed, whole)


def test_it_goes_on_with_another_number_of_ranks(train_ranks, lightning_job):
    job = lightning_job(checkpoint={"every_steps": 3, "every_epochs": 0})
    before = train_ranks(job, 2, stop_after=10)
    resumed = train_ranks(job, 4, run=before.run, attempt=1)
    assert resumed.exit_codes == [0] * 4, resumed.log(attempt=1)
    [event] = resumed.events("resume", attempt=1)
    assert (event["exact"], event["world_size_before"]) == (False, 2)
    # 3 steps of 32 samples are done: the epoch goes on after the first of 4 x 16.
    left = sum(w["samples"] for r in range(4) for w in resumed.events("steps", r, attempt=1))
    assert left == 203 - 64
    assert resumed.state()["position"] == {"step": 13, "epoch": 2, "samples": 0}


def test_an_attempt_that_is_out_of_date_saves_nothing(train_ranks, lightning_job):
    done = train_ranks(lightning_job(checkpoint={"every_steps": 1}), 2, overtaken=True)
    assert 1 in done.exit_codes
    assert "a newer attempt of this run has begun" in done.log()
    assert list(done.run.checkpoints_folder.iterdir()) == []


@pytest.mark.parametrize("first", ["train", "lightning"])
def test_a_checkpoint_of_the_other_trainer_is_refused_by_name(
    train_ranks, make_job, lightning_job, first
):
    makers = {"train": make_job, "lightning": lightning_job}
    second = next(make for name, make in makers.items() if name != first)
    before = train_ranks(makers[first](train={"max_steps": 1}), 1)
    refused = train_ranks(second(checkpoint={"resume": str(before.run.path)}), 1)
    assert refused.exit_codes == [1]
    assert f"{before.checkpoints()[0]} is not a checkpoint that" in refused.log()
