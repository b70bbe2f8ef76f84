"""What scontrol says of an allocation, and what a step in it asks for."""

import pytest

from hpcdist.base.errors import JobError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.schedulers.slurm.site import MIB_PER_GB, parse_allocation, step_options
from hpcdist.schedulers.slurm.slurm import scheduler

OLD = (
    "JobId=7 JobName=interactive JobState=RUNNING NumNodes=3 NumCPUs=6 NumTasks=6 "
    "TRES=cpu=6,mem=600M,node=3,billing=6,gres/gpu=6 MinCPUsNode=2"
)
NEW = (
    "JobId=7 JobState=RUNNING NumNodes=2 NumCPUs=6 ReqTRES=cpu=2,mem=2G,node=2,billing=2 "
    "AllocTRES=cpu=6,mem=1.5G,node=2,billing=6,gres/gpu=4,gres/gpu:a100=4"
)
SHELL = {"SLURM_JOB_CPUS_PER_NODE": "2(x3)"}
UNACCOUNTED = OLD.replace(",gres/gpu=6", "")


def test_an_allocation_is_read_as_slurm_22_says_it():
    found = parse_allocation("7", OLD, SHELL)
    assert (found.num_nodes, found.cpus, found.gpus_per_node) == (3, [2, 2, 2], 2)
    assert found.mem_gb_per_node * MIB_PER_GB == pytest.approx(200)


def test_an_allocation_is_read_as_slurm_24_says_it():
    found = parse_allocation("7", NEW, {"SLURM_JOB_CPUS_PER_NODE": "4,2"})
    assert (found.num_nodes, found.cpus, found.gpus_per_node) == (2, [4, 2], 2)
    assert found.mem_gb_per_node * MIB_PER_GB == pytest.approx(768)


def test_without_the_shells_variable_cpus_are_shared_equally():
    assert parse_allocation("7", NEW, {}).cpus == [3, 3]


@pytest.mark.parametrize(
    ("said", "shell", "gpus"),
    [
        ("TresPerNode=gres:gpu:2", {}, 2),
        ("TresPerNode=gres:gpu", {}, 1),
        ("TresPerNode=gres:nvme:1,gres:gpu:a100:2,gres:gpu:v100:1", {}, 3),
        ("TresPerNode=gres/gpu:a100:4", {}, 4),
        ("TresPerJob=gres:gpu:6", {}, 2),
        ("TresPerNode=gres:nvme:2", {}, 0),
    ],
)
def test_gpus_are_found_where_the_site_does_not_account_for_them(said, shell, gpus):
    found = parse_allocation("7", f"{UNACCOUNTED} {said}", SHELL | shell)
    assert found.gpus_per_node == gpus


def test_a_step_goes_by_the_profile_as_a_job_does(script_job):
    allocation = parse_allocation("7", OLD, SHELL)
    cluster = ClusterProfile(mem_gb=0.05, time_limit_min=90)
    options = step_options(script_job("train.py"), cluster, allocation)
    assert options == ["--exact", "--mem=48M", "--gres=none", "--time=0-01:30:00"]
    job = script_job("train.py", mem_gb=0.1, time_limit_min=5)
    assert step_options(job, cluster, allocation)[1:] == [
        "--mem=96M",
        "--gres=none",
        "--time=0-00:05:00",
    ]


def test_a_profile_for_larger_jobs_takes_all_the_memory_of_the_allocation(script_job):
    allocation = parse_allocation("7", OLD, SHELL)
    options = step_options(script_job("train.py"), ClusterProfile(mem_gb=64), allocation)
    assert "--mem=200M" in options


def test_a_step_asks_for_its_share_so_that_others_have_room(script_job):
    allocation = parse_allocation("7", OLD, SHELL)
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
        ({"mem_gb": 1}, "resources.mem_gb is 1, but allocation 7 has 0 .* 0.21 at most on a node"),
        ({"gpus": 3}, "takes 3 CPUs per node, but allocation 7 has 0 .* 2 at most on a node"),
        ({"device": "cuda"}, "resources.gpus is 1, but allocation 7 has 0 nodes with so many GPUs"),
    ],
    ids=["nodes", "memory", "cpus", "cuda"],
)
def test_what_the_allocation_does_not_have_is_an_error(script_job, options, words):
    job = script_job("train.py", **options)
    with pytest.raises(JobError, match=words):
        scheduler.plan_step(job, ClusterProfile(), parse_allocation("7", UNACCOUNTED, SHELL))
