"""Strategies compute the same, and hold what they promise to."""

import pytest
import torch

from hpcdist.base import files
from hpcdist.job.spec import job_to_dict
from hpcdist.summary import summarize

SEVERAL_BLOCKS = {"args": {"hidden": 1100, "dropout": 0.0}}
"""A large layer is gathered by itself, the rest with the whole."""

ONE_EPOCH = {"epochs": 1, "optimizer": "sgd", "lr": 0.05}


def test_fsdp_trains_like_ddp_and_holds_half_of_its_states(train_ranks, make_job):
    # 300 test samples are three batches: some ranks have one more than others.
    sections = {
        "model": SEVERAL_BLOCKS,
        "train": {**ONE_EPOCH, "batch_size": 8, "accumulate": 3},
        "data": {"test_samples": 300},
    }
    held, trained = {}, {}
    for strategy in ("ddp", "fsdp"):
        job = make_job(strategy, **sections)
        done = trained[strategy] = train_ranks(job, 2)
        assert done.exit_codes == [0, 0], done.log()
        files.write_json(done.run.spec_file, {"job": job_to_dict(job)})
        [run] = summarize([done.run], {}).runs
        held[strategy] = run.model_states
    ddp, fsdp = trained.values()
    parameters = ddp.events("setup")[0]["parameters"]
    assert held["ddp"].parameter_bytes == held["ddp"].gradient_bytes == 4 * parameters
    assert held["ddp"].optimizer_bytes >= 4 * parameters
    assert held["fsdp"].total_bytes == pytest.approx(held["ddp"].total_bytes / 2, rel=0.02)
    _assert_close(fsdp.weights(), ddp.weights())
    [found], [expected] = fsdp.events("evaluate"), ddp.events("evaluate")
    assert found["samples"] == 300
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    by_ddp = ddp.events("steps")
    for windows in (by_ddp, fsdp.events("steps")):
        phases = windows[-1]["phases_s"]
        assert ("exposed_communication" in phases) == (windows is by_ddp)  # FSDP's is in the passes
        assert phases["forward_backward"] > 0
        assert sum(phases.values()) == pytest.approx(windows[-1]["step_time_s"]["sum"], rel=0.1)


def test_data_parallel_without_gpus_computes_what_it_would_on_two(train_ranks, make_job):
    sections = {"model": {"args": {"dropout": 0.0}}, "resources": {"gpus": 2}}
    ddp = train_ranks(make_job("ddp", **sections, train=ONE_EPOCH), 2)
    one_process = train_ranks(make_job("data_parallel", **sections, train=ONE_EPOCH), 1)
    _assert_close(one_process.weights(), ddp.weights())


def _assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)
