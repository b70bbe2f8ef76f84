"""How the ranks of a run on this machine are told to share it."""

import pytest

from hpcdist.job.spec import Resources, ScriptJob
from hpcdist.runs.spec import LaunchPlan, NodePlan
from hpcdist.schedulers.local.layout import explain


def lines(nodes, *, device="cpu", num_threads=None):
    per_node = len(nodes[0].gpus or nodes[0].rank_cpus)
    job = ScriptJob(name="t", script="t.py", resources=Resources(nodes=len(nodes), gpus=per_node))
    launch = LaunchPlan(nodes=nodes, device=device, backend="gloo", num_threads=num_threads)
    return explain(job, launch)


@pytest.mark.parametrize(
    ("cpus", "text"), [([0], "0"), ([0, 1, 2, 5], "0-2, 5"), ([7, 3], "3, 7"), ([4, 5], "4-5")]
)
def test_the_cpus_of_a_rank_are_ranges(cpus, text):
    node = NodePlan(address="127.0.0.1", rank_cpus=[cpus])
    assert lines([node], num_threads=1) == [
        "ranks: 1 node with 1 rank, on cpu with gloo, 1 thread each (OMP_NUM_THREADS)",
        f"node 0: 127.0.0.1; rank 0: CPUs {text}",
    ]


def test_a_rank_on_a_gpu_has_it_beside_its_cpus():
    nodes = [NodePlan(rank_cpus=[[0, 1], [2, 3]], gpus=["GPU-a", "GPU-b"])] * 2
    assert lines(nodes, device="cuda") == [
        "ranks: 2 nodes x 2 ranks = 4 ranks, on cuda with gloo",
        "node 0: rank 0: GPU-a and CPUs 0-1; rank 1: GPU-b and CPUs 2-3",
        "node 1: rank 0: GPU-a and CPUs 0-1; rank 1: GPU-b and CPUs 2-3",
    ]
