"""Lightning's trainer beside the torch loop: the same batches, steps, events and stops."""

import pytest
import torch

from hpcdist.base import files
from hpcdist.job.spec import job_to_dict
from hpcdist.summary import summarize

STEPS = 7  # of an epoch of 203 samples on 2 ranks of 16
LIGHTNING = (
    "pytorch_lightning",
    "torch.distributed.algorithms.ddp_comm_hooks",
    "torchvision.models",
    "hpcdist.training.lightning.fit",
    "hpcdist.workloads.train",
)


@pytest.fixture(scope="module", autouse=True)
def lightning_is_imported_before_ranks_are_forked(import_for_ranks):
    import_for_ranks(*LIGHTNING)


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


SHUFFLENET = {
    "model": {"name": "shufflenet_v2_x0_5"},
    "data": {"train_samples": 40, "test_samples": 20},
}
SETTINGS = {
    "ddp": {},
    "accumulation": {"train": {"accumulate": 2, "schedule": "cosine", "clip_norm": 0.1}},
    "bf16-mixed": {"train": {"precision": "bf16-mixed"}},
    "fp16-mixed, clipped": {"train": {"precision": "fp16-mixed", "clip_norm": 0.1}},
    "bf16-true, clipped": {"train": {"precision": "bf16-true", "clip_norm": 0.1}},
    "recomputed batch norm": {
        **SHUFFLENET,
        "train": {"epochs": 1, "activation_checkpointing": True},
    },
    "ddp's options": {
        "train": {"static_graph": True, "gradient_as_bucket_view": False, "accumulate": 2}
    },
    "max_steps": {"train": {"max_steps": 9, "optimizer": "sgd", "warmup_steps": 3}},
    "workers, seldom evaluated": {
        "data": {"workers": 1},
        "train": {"epochs": 3, "evaluate_every_epochs": 2},
    },
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_two_ranks_train_as_the_torch_loop_does(
    train_ranks, train_whole, make_job, lightning_job, setting
):
    by_loop = train_whole(make_job(**setting), 2)
    by_lightning = train_ranks(lightning_job(**setting), 2)
    is_half = setting.get("train", {}).get("precision", "fp32") != "fp32"
    assert_trained_alike(by_lightning, by_loop, rel=0.03 if is_half else 1e-3)


@pytest.mark.parametrize("world_size", [1, 4])
def test_other_numbers_of_ranks_do_so_too(
    train_ranks, train_whole, make_job, lightning_job, world_size
):
    by_loop = train_whole(make_job(), world_size)
    assert_trained_alike(train_ranks(lightning_job(), world_size), by_loop)


OF_FSDP = {
    "several blocks": {"train": {"accumulate": 2, "clip_norm": 0.1, "epochs": 1}},
    "fp16-mixed": {
        "train": {"precision": "fp16-mixed", "optimizer": "sgd", "clip_norm": 1.0, "epochs": 1}
    },
    "bf16-true": {"train": {"precision": "bf16-true", "epochs": 1}},
    "recomputed": {**SHUFFLENET, "train": {"epochs": 1, "activation_checkpointing": True}},
}
SEVERAL_BLOCKS = {"model": {"name": "mlp", "args": {"hidden": [1100, 64]}}}


@pytest.mark.parametrize("setting", OF_FSDP.values(), ids=OF_FSDP)
def test_fsdp_trains_as_the_torch_loop_does_and_holds_as_little(
    train_ranks, make_job, lightning_job, setting
):
    sections = {**SEVERAL_BLOCKS, **setting}
    by_loop = train_ranks(make_job("fsdp", **sections), 2)
    by_lightning = train_ranks(lightning_job("fsdp", **sections), 2)
    is_half = setting["train"].get("precision", "fp32") != "fp32"
    assert_trained_alike(by_lightning, by_loop, rel=0.03 if is_half else 1e-3)
    for rank in range(2):
        assert held(by_lightning, rank) == held(by_loop, rank)


@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
def test_memory_is_that_of_the_torch_loop_in_the_summary_too(
    train_ranks, make_job, lightning_job, strategy
):
    sections = {**SEVERAL_BLOCKS, "train": {"max_steps": 2}}
    expected = train_ranks(make_job("ddp" if strategy == "auto" else "fsdp", **sections), 2)
    job = lightning_job(strategy, **sections)
    done = train_ranks(job, 2)
    for rank in range(2):
        assert [event["when"] for event in done.events("memory", rank)] == ["first_step", "end"]
        assert held(done, rank) == held(expected, rank)
    files.write_json(done.run.spec_file, {"job": job_to_dict(job)})
    [run] = summarize([done.run], {}).runs
    assert run.model_states.total_bytes == sum(held(done, 0)[0])
    assert done.events("memory")[-1]["peak_bytes"] > run.model_states.total_bytes


def held(training, rank):
    keys = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
    return [tuple(event[key] for key in keys) for event in training.events("memory", rank)]


def test_fsdp_goes_on_from_its_checkpoint_and_from_one_of_ddp(train_ranks, lightning_job):
    job = lightning_job("fsdp", **SEVERAL_BLOCKS)
    whole = train_ranks(job, 2)
    stopped = train_ranks(job, 2, stop_after=3)
    assert stopped.exit_codes == [75, 75], stopped.log()
    resumed = train_ranks(job, 2, run=stopped.run, attempt=1)
    assert resumed.exit_codes == [0, 0], resumed.log(attempt=1)
    assert resumed.events("resume", attempt=1)[0]["exact"]
    assert_same_weights(resumed, whole)
    half = {**SEVERAL_BLOCKS, "train": {"epochs": 1}}
    by_ddp = train_ranks(lightning_job("ddp", **half), 2)
    after_ddp = train_ranks(
        lightning_job("fsdp", **SEVERAL_BLOCKS, checkpoint={"resume": str(by_ddp.run.path)}), 2
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


def test_it_records_what_the_torch_loop_records(train_ranks, lightning_job):
    done = train_ranks(lightning_job(checkpoint={"every_steps": 3}), 2)
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
    mean_loss = done.events("epoch")[-1]["loss"]
    assert f"epoch 2/2  loss {mean_loss:.4f} (rank 0)  accuracy " in done.log()


def test_lightning_itself_says_nothing(train_ranks, lightning_job):
    done = train_ranks(lightning_job(), 2)
    assert all(line.startswith("epoch ") for line in done.log().splitlines()), done.log()
    assert done.log(1) == ""


STOPS = {
    "in the first epoch": (3, {}),
    "before an epoch's end": (STEPS - 1, {}),
    "at an epoch's end": (STEPS, {}),
    "after an epoch's end": (STEPS + 1, {}),
    "at the very end": (2 * STEPS, {}),
    "accumulating": (2, {"train": {"accumulate": 2, "schedule": "cosine"}}),
    "at the last of max_steps": (10, {"train": {"max_steps": 10}}),
    "saved at that step too": (3, {"checkpoint": {"every_steps": 3}}),
    "with workers": (3, {"data": {"workers": 1}}),
}


@pytest.mark.parametrize(("stop_after", "setting"), STOPS.values(), ids=STOPS)
def test_a_stopped_training_goes_on_to_the_weights_of_one_that_never_stopped(
    train_ranks, train_whole, lightning_job, stop_after, setting
):
    job = lightning_job(**setting)
    whole = train_whole(job, 2)
    stopped = train_ranks(job, 2, stop_after=stop_after)
    assert stopped.exit_codes == [75, 75], stopped.log()
    assert stopped.state()["position"]["step"] == stop_after
    for rank in range(2):
        [event] = stopped.events("stop", rank)
        assert event["step"] == stop_after
        assert sum(window["steps"] for window in stopped.events("steps", rank)) == stop_after
    resumed = train_ranks(job, 2, run=stopped.run, attempt=1)
    assert resumed.exit_codes == [0, 0], resumed.log(attempt=1)
    [event] = resumed.events("resume", attempt=1)
    assert (event["step"], event["exact"]) == (stop_after, True)
    assert_same_weights(resumed, whole)
    assert scores(resumed) + scores(resumed, attempt=1) == scores(whole)
    both = resumed.events("epoch") + resumed.events("epoch", attempt=1)
    assert [e["epoch"] for e in both] == [e["epoch"] for e in whole.events("epoch")]


def test_a_killed_training_goes_on_from_its_newest_checkpoint_that_is_whole(
    train_ranks, train_whole, lightning_job
):
    job = lightning_job(checkpoint={"every_steps": 2, "keep": 3})
    whole = train_whole(job, 2)
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


def test_another_run_goes_on_where_an_epoch_ended(train_ranks, train_whole, lightning_job):
    whole = train_whole(lightning_job(), 2)
    first = train_ranks(lightning_job(train={"epochs": 1}), 2)
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


def test_a_finished_training_that_starts_again_trains_no_further(train_ranks, lightning_job):
    first = train_ranks(lightning_job(), 2)
    weights = first.weights()
    again = train_ranks(lightning_job(), 2, run=first.run, attempt=1)
    assert again.exit_codes == [0, 0], again.log(attempt=1)
    assert again.events("steps", attempt=1) == []
    assert all(torch.equal(again.weights()[name], weights[name]) for name in weights)


def test_an_attempt_that_is_out_of_date_saves_nothing(train_ranks, lightning_job):
    done = train_ranks(lightning_job(), 2, overtaken=True)
    assert 1 in done.exit_codes
    assert "a newer attempt of this run has begun" in done.log()
    assert list(done.run.checkpoints_folder.iterdir()) == []


@pytest.mark.parametrize("first", ["train", "lightning"])
def test_a_checkpoint_of_the_other_trainer_is_refused_by_name(
    train_ranks, make_job, lightning_job, first
):
    makers = {"train": make_job, "lightning": lightning_job}
    second = next(make for name, make in makers.items() if name != first)
    before = train_ranks(makers[first](train={"epochs": 1}), 1)
    refused = train_ranks(second(checkpoint={"resume": str(before.run.path)}), 1)
    assert refused.exit_codes == [1]
    assert f"{before.checkpoints()[0]} is not a checkpoint that" in refused.log()
