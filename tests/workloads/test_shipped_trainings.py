"""The trainings that come with hpcdist beside ddp, as their files say, on simulated nodes."""

import pytest

from hpcdist.summary import summarize


@pytest.mark.parametrize(("name", "gpus"), [("fsdp", 2), ("data_parallel", 1)])
def test_a_job_trains_and_has_a_summary(submit_job, name, gpus):
    launched = submit_job(name, "train.epochs=1", "data.name=digits", gpus=gpus)
    assert launched.verdict().state == "done", launched.everything_said()
    (summary,) = summarize([launched.run], {}).runs
    assert (summary.job, summary.world_size) == (name, gpus)
    assert summary.samples_per_s.mean > 0
