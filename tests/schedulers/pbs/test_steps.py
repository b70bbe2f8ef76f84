"""What the job of a shell has, from what PBS says of it."""

import time

import pytest

from hpcdist.base.errors import JobError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import Launch, Resources, ScriptJob
from hpcdist.schedulers.pbs.steps import (
    PbsAllocation,
    check_allocation,
    parse_allocation,
    step_limit_min,
)


def test_cpus_gpus_and_the_time_that_is_left_are_read_per_host():
    begin_s = time.mktime(time.strptime("Sun Nov 22 22:36:56 2026"))
    values = {
        "exec_host": "n1/0*4+n2/0*2+n2/1",
        "exec_vnode": "(n1:ncpus=4:ngpus=2)+(n2:ncpus=2:ngpus=1)+(n2:ncpus=1:ngpus=1)",
        "stime": "Sun Nov 22 22:36:56 2026",
        "Resource_List.walltime": "01:00:00",
    }
    found = parse_allocation("12.login", values, ["n1.site", "n2.site"], now_s=begin_s + 600)
    assert found == PbsAllocation(
        job_id="12", num_nodes=2, cpus=[4, 3], gpus_per_node=2, left_min=50
    )


def test_hosts_that_are_called_by_their_addresses_are_told_apart():
    values = {"exec_host": "10.0.0.1/0*2+10.0.0.2/0"}
    found = parse_allocation("12", values, ["10.0.0.1", "10.0.0.2"], now_s=0.0)
    assert found == PbsAllocation(job_id="12", num_nodes=2, cpus=[2, 1])


@pytest.mark.parametrize(
    ("asked_min", "left_min", "limit_min"),
    [(None, None, None), (5, None, 5), (None, 50, 50), (5, 50, 5), (90, 50, 50)],
)
def test_a_run_ends_with_the_job_of_its_shell_or_before(asked_min, left_min, limit_min):
    job = ScriptJob(name="x", script="x.py", resources=Resources(time_limit_min=asked_min))
    allocation = PbsAllocation(job_id="12", num_nodes=1, cpus=[1], left_min=left_min)
    assert step_limit_min(job, ClusterProfile(), allocation) == limit_min


@pytest.mark.parametrize(
    ("gpus", "device", "has", "said"),
    [
        (3, "auto", 2, "resources.gpus is 3, but job 12 has 2 GPUs per node"),
        (1, "cuda", 0, "launch.device is cuda, but job 12 has no GPU"),
        (3, "cpu", 0, None),
        (2, "auto", 2, None),
    ],
)
def test_gpus_that_the_job_of_the_shell_does_not_have_are_refused(gpus, device, has, said):
    job = ScriptJob(
        name="x", script="x.py", resources=Resources(gpus=gpus), launch=Launch(device=device)
    )
    allocation = PbsAllocation(job_id="12", num_nodes=1, cpus=[4], gpus_per_node=has)
    if said is None:
        check_allocation(job, ClusterProfile(), allocation)
        return
    with pytest.raises(JobError) as refused:
        check_allocation(job, ClusterProfile(), allocation)
    assert refused.value.message == said
