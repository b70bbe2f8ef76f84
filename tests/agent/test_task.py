"""A job may wait while hpcdist is replaced by a newer version: its files are the older one's."""

import msgspec
import pytest

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import ScriptJob, job_to_dict
from hpcdist.runs.spec import LaunchPlan, NodePlan, RunSpec, UsedCluster, decode_launch


@pytest.fixture
def spec():
    job = ScriptJob(name="job", workload="script", script="train.py")
    plan = LaunchPlan(nodes=[NodePlan()], device="cpu", backend="gloo")
    used = UsedCluster(name="here", profile=ClusterProfile())
    return RunSpec(scheduler="lsf", job=job_to_dict(job), plan=plan, cluster=used).encode()


def test_keys_of_a_profile_that_this_version_does_not_know_hinder_no_agent(spec):
    spec["cluster"]["profile"]["lsf"]["node_rank_variable"] = None
    job, plan, rest = decode_launch(spec)
    assert (job.script, plan.backend, rest.scheduler) == ("train.py", "gloo", "lsf")


@pytest.mark.parametrize("section", ["job", "plan"])
def test_job_and_plan_must_be_as_this_version_writes_them(spec, section):
    for wrong in ({}, None, []):
        with pytest.raises(msgspec.ValidationError):
            decode_launch(spec | {section: wrong})
    del spec[section]
    with pytest.raises(msgspec.ValidationError):
        decode_launch(spec)
