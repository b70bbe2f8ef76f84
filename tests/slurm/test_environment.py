"""What every rank is told, against what Slurm itself says of the job."""

import json

import pytest
from cluster_user import END_LIMIT_S, User, expand, job_id, printed
from trainings import CPU

SHOW = """\
import json, os
kept = {name: os.environ.get(name) for name in os.environ if not name.startswith("BASH_FUNC")}
print(json.dumps({"environment": kept}))
"""
WAIT = """\
import time
print("up", flush=True)
while not os.path.exists("gate"):
    time.sleep(0.02)
"""


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


def profile(user, *directives):
    user.write("hpcdist.yaml", f"clusters:\n  lab:\n    directives: {json.dumps(directives)}\n")


@pytest.mark.parametrize(
    ("nodes", "gpus", "node_list"),
    [(1, 4, None), (4, 1, None), (3, 2, [1, 2, 4])],
    ids=["1x4", "4x1", "not contiguous"],
)
def test_every_rank_is_told_its_place_as_slurm_sees_it(user, nodes, gpus, node_list):
    if node_list:
        profile(user, "--nodelist=" + ",".join(f"127.0.1.{number}" for number in node_list))
    options = CPU if gpus > 2 else ()
    script = user.write("show.py", SHOW)
    run = user.submit(script, "--nodes", nodes, "--gpus", gpus, *options)
    user.done(run, END_LIMIT_S)
    accounting = user.cluster.run("scontrol", "--oneliner", "show", "job", job_id(run)).stdout
    (allocated,) = [w.partition("=")[2] for w in accounting.split() if w.startswith("NodeList=")]
    hosts = expand(allocated)
    if node_list:
        assert hosts == [f"127.0.1.{number}" for number in node_list]
    ports = set()
    for rank in range(nodes * gpus):
        seen = printed(run, rank)["environment"]
        node, local_rank = divmod(rank, gpus)
        assert {
            "RANK": seen["RANK"],
            "WORLD_SIZE": seen["WORLD_SIZE"],
            "LOCAL_RANK": seen["LOCAL_RANK"],
            "LOCAL_WORLD_SIZE": seen["LOCAL_WORLD_SIZE"],
            "NODE_RANK": seen["NODE_RANK"],
            "GROUP_RANK": seen["GROUP_RANK"],
            "GROUP_WORLD_SIZE": seen["GROUP_WORLD_SIZE"],
            "MASTER_ADDR": seen["MASTER_ADDR"],
            "node": seen["SLURMD_NODENAME"],
        } == {
            "RANK": str(rank),
            "WORLD_SIZE": str(nodes * gpus),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(gpus),
            "NODE_RANK": seen["SLURM_NODEID"],
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": seen["SLURM_JOB_NUM_NODES"],
            "MASTER_ADDR": hosts[0] if nodes > 1 else "127.0.0.1",
            "node": hosts[node],
        }
        assert seen["SLURM_NODEID"] == str(node)
        assert seen["TORCHELASTIC_RUN_ID"] == run.id
        if options:
            assert "CUDA_VISIBLE_DEVICES" not in seen
        else:
            assert seen["CUDA_VISIBLE_DEVICES"] == ",".join(str(gpu) for gpu in range(gpus))
        ports.add(seen["MASTER_PORT"])
    assert len(ports) == 1
    assert 20_000 <= int(ports.pop()) < 30_000


def test_two_jobs_on_one_node_do_not_meet(user):
    profile(user, "--nodelist=127.0.1.3")
    script = user.write("show.py", SHOW + WAIT)
    runs = [user.submit(script, "--gpus", 1) for _ in range(2)]
    for run in runs:
        user.wait_for_line(run, "up")
    user.write("gate", "")
    for run in runs:
        user.done(run)
    seen = [printed(run, 0)["environment"] for run in runs]
    assert {one["SLURMD_NODENAME"] for one in seen} == {"127.0.1.3"}
    assert seen[0]["MASTER_PORT"] != seen[1]["MASTER_PORT"]
    assert seen[0]["CUDA_VISIBLE_DEVICES"] != seen[1]["CUDA_VISIBLE_DEVICES"]
