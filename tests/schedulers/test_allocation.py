"""What scontrol says of an allocation, and what a step in it asks for."""

import pytest

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.errors import JobError
from hpcdist.schedulers.slurm.allocation import check_allocation, parse_allocation, step_options

OLD = (
    "JobId=7 JobName=interactive JobState=RUNNING NumNodes=3 NumCPUs=6 NumTasks=6 "
    "TRES=cpu=6,mem=600M,node=3,billing=6,gres/gpu=6 MinCPUsNode=2"
)
NEW = (
    "JobId=7 JobState=RUNNING NumNodes=2 NumCPUs=6 ReqTRES=cpu=2,mem=2G,node=2,billing=2 "
    "AllocTRES=cpu=6,mem=1.5G,node=2,billing=6,gres/gpu=4,gres/gpu:a100=4"
)


def test_an_allocation_is_read_as_slurm_22_says_it():
    found = parse_allocation("7", OLD, "2(x3)")
    assert (found.num_nodes, found.cpus, found.gpus_per_node) == (3, [2, 2, 2], 2)
    assert found.mem_mib_per_node == 200


def test_an_allocation_is_read_as_slurm_24_says_it():
    found = parse_allocation("7", NEW, "4,2")
    assert (found.num_nodes, found.cpus, found.gpus_per_node) == (2, [4, 2], 2)
    assert found.mem_mib_per_node == 768


def test_without_the_shells_variable_cpus_are_shared_equally():
    assert parse_allocation("7", NEW, "").cpus == [3, 3]


def test_a_step_asks_for_its_share_so_that_others_have_room(script_job):
    allocation = parse_allocation("7", OLD, "2(x3)")
    job = script_job("train.py", nodes=2, gpus=1, device="auto", time_limit_min=5)
    options = step_options(job, ClusterProfile(), allocation)
    assert options == ["--exact", "--mem=100M", "--gres=gpu:1", "--time=0-00:05:00"]
    on_cpus = script_job("train.py", nodes=2, gpus=1, mem_gb=0.05)
    options = step_options(on_cpus, ClusterProfile(), allocation)
    assert options == ["--exact", "--mem=48M", "--gres=none"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nodes": 4}, "resources.nodes is 4, but allocation 7 has 3"),
        ({"gpus": 3}, "takes 3 CPUs on each node, but allocation 7 has 2 per node"),
    ],
    ids=["nodes", "cpus"],
)
def test_what_the_allocation_does_not_have_is_an_error(script_job, options, words):
    job = script_job("train.py", **options)
    with pytest.raises(JobError, match=words):
        check_allocation(job, ClusterProfile(), parse_allocation("7", OLD, "2(x3)"))


def test_cuda_in_an_allocation_without_gpus_is_an_error(script_job):
    allocation = parse_allocation("7", OLD.replace(",gres/gpu=6", ""), "2(x3)")
    with pytest.raises(JobError, match="allocation 7 has no GPU"):
        check_allocation(script_job("t.py", device="cuda"), ClusterProfile(), allocation)
