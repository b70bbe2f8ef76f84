"""Benchmarks that Slurm warns in the middle of a long measurement."""

import pytest
from cluster_user import User, events, job_id
from interruptions import warn

from hpcdist.summary import summarize

LONG = (
    *("--set", "launch.device=cpu", "--gpus", "2"),
    *("--set", "allreduce.max_time_s=600", "--set", "allreduce.iterations=200"),
    *("--set", "allreduce.sizes=[4,134217728]"),
)


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


def test_a_benchmark_that_slurm_warns_is_stopped_and_keeps_what_it_has(user):
    run = user.submit("allreduce", "--scheduler=slurm", *LONG)
    user.wait_for_line(run, "bus")
    warn(user, run)
    verdict = user.verdict(run)
    assert (verdict.state, verdict.exit_code_of_run) == ("preempted", 75), verdict
    user.cluster.wait_for_end(job_id(run))
    whole, *cut_short = events(run, "collective")
    assert whole["iterations"] == 200
    assert all(event["iterations"] < 200 for event in cut_short)
    (summary,) = summarize([run], {}).runs
    assert len(summary.all_reduce.sizes) == 1 + len(cut_short)
