"""Precisions, activation checkpointing, and models of the user's."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hpcdist.training.optimization import PRECISIONS, Autocasting


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_recomputed_blocks_train_exactly_like_kept_ones(train_ranks, make_job, own_model, strategy):
    sections = {"model": {"name": own_model, "args": {"width": 32}}}
    kept = train_ranks(make_job(strategy, **sections, train={"epochs": 1}), 2)
    train = {"epochs": 1, "activation_checkpointing": True}
    again = train_ranks(make_job(strategy, **sections, train=train), 2)
    assert again.exit_codes == [0, 0], again.log()
    found, expected = again.weights(), kept.weights()  # running means and counts of them, too
    assert found.keys() == expected.keys()
    assert any("num_batches_tracked" in name for name in expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_what_is_slow_on_an_older_gpu_is_noted(monkeypatch):
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _gpu: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _gpu: (7, 0))
    told = {name: precision.note(gpu) for name, precision in PRECISIONS.items()}
    assert {name for name, note in told.items() if note} == {"tf32", "bf16-mixed", "bf16-true"}
    assert "which Tesla V100 (compute capability 7.0) computes without" in told["bf16-mixed"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _gpu: (8, 0))
    assert not any(precision.note(gpu) for precision in PRECISIONS.values())
    assert not any(precision.note(torch.device("cpu")) for precision in PRECISIONS.values())


@pytest.mark.parametrize("name", ["bf16-mixed", "fp16-mixed"])
def test_a_model_computes_in_the_format_of_its_precision_in_any_thread(name):
    precision = PRECISIONS[name]
    model = Autocasting(torch.nn.Linear(4, 2), precision)
    with ThreadPoolExecutor(1) as other:  # as those that nn.DataParallel starts
        assert other.submit(model, torch.ones(3, 4)).result().dtype == precision.autocast


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
def test_fp16_mixed_scales_gradients_and_resumes_exactly(
    train_ranks, train_whole, make_job, strategy
):
    ranks = 1 if strategy == "single" else 2
    sections = {
        "model": {"name": "mlp"},
        "train": {"precision": "fp16-mixed", "epochs": 1, "batch_size": 8, "clip_norm": 1.0},
        "checkpoint": {"every_steps": 2},
    }
    job = make_job(strategy, **sections)
    whole = train_whole(job, ranks)
    assert whole.exit_codes == [0] * ranks, whole.log()
    assert whole.state()["scaler"]["scale"] > 1
    assert whole.state()["scaler"]["_growth_tracker"] > 2
    stopped = train_ranks(job, ranks, stop_after=5)
    resumed = train_ranks(job, ranks, run=stopped.run, attempt=1)
    assert resumed.events("resume", attempt=1)[0]["exact"]
    assert resumed.state()["scaler"] == whole.state()["scaler"]
    expected = whole.weights()
    assert all(torch.equal(value, expected[name]) for name, value in resumed.weights().items())


def test_bf16_true_keeps_weights_and_moments_in_bfloat16(train_ranks, make_job):
    done = train_ranks(make_job(train={"precision": "bf16-true", "epochs": 1}), 2)
    assert done.exit_codes == [0, 0], done.log()
    assert {value.dtype for value in done.weights().values()} == {torch.bfloat16}
    [first] = done.events("memory")
    assert first["parameter_bytes"] == 2 * done.events("setup")[0]["parameters"]


def test_a_model_with_the_wrong_number_of_outputs_is_refused_before_training(
    train_ranks, make_job, own_model
):
    model = {"name": own_model, "args": {"num_classes": 7}}
    refused = train_ranks(make_job("single", model=model), 1)
    assert refused.exit_codes == [1]
    assert "for 2 images of 10 classes the model gives (2, 7)" in refused.log()
    assert refused.events("steps") == []
