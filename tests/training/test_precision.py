"""Precisions, and models of the user's."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hpcdist.training.strategies import PRECISIONS, Autocasting


@pytest.mark.parametrize("name", ["bf16-mixed", "fp16-mixed"])
def test_a_model_computes_in_the_format_of_its_precision_in_any_thread(name):
    precision = PRECISIONS[name]
    model = Autocasting(torch.nn.Linear(4, 2), precision)
    with ThreadPoolExecutor(1) as other:  # as those that nn.DataParallel starts
        assert other.submit(model, torch.ones(3, 4)).result().dtype == precision.autocast


def test_fp16_mixed_scales_gradients_and_resumes_with_its_scale(train_ranks, make_job):
    train = {"precision": "fp16-mixed", "epochs": 1, "batch_size": 8}
    data = {"train_samples": 101}
    job = make_job("single", data=data, train=train, checkpoint={"every_steps": 3})
    whole = train_ranks(job, 1)
    assert whole.exit_codes == [0], whole.log()
    assert whole.state()["scaler"]["scale"] > 1
    assert whole.state()["scaler"]["_growth_tracker"] > 2
    stopped = train_ranks(job, 1, stop_after=5)
    resumed = train_ranks(job, 1, run=stopped.run, attempt=1)
    assert resumed.events("resume", attempt=1)[0]["exact"]
    assert resumed.state()["scaler"] == whole.state()["scaler"]


def test_a_model_with_the_wrong_number_of_outputs_is_refused_before_training(
    train_ranks, make_job, own_model
):
    model = {"name": own_model, "args": {"num_classes": 7}}
    refused = train_ranks(make_job("single", model=model), 1)
    assert refused.exit_codes == [1]
    assert "for 2 images of 10 classes the model gives (2, 7)" in refused.log()
    assert refused.events("steps") == []
