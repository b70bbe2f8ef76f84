"""Functions from Python and comparisons, on a real cluster."""

import json

ON_TWO_NODES = ("--nodes", "2", "--set", "launch.device=cpu")


STEPS = """
import time
import torch
from hpcdist import record

record.start()
print("here", flush=True)
while True:
    torch.ones(100).sum()
    record.step(samples=1)
    time.sleep(0.01)
"""


def test_a_living_job_shows_where_its_ranks_are_is_profiled_and_entered(user, tmp_path):
    user.write("steps.py", STEPS)
    run = user.submit("steps.py", *ON_TWO_NODES)
    user.wait_for_line(run, "here", rank=1)
    where = json.loads(user("stacks", run.id, "--json").stdout)
    assert [(one["node"], one["of"]["rank"]) for one in where["ranks"]] == [(0, 0), (1, 1)]
    profiled = user("profile", run.id, "--steps", "3")
    assert profiled.returncode == 0, profiled.stderr
    assert "aten::sum" in profiled.stdout
    assert len(list((run.path / "traces").iterdir())) == 2
    show = "echo $RANK $WORLD_SIZE $SLURM_JOB_ID $SLURMD_NODENAME $PWD; exit 7"
    done = user("attach", run.id, "--rank", "1", "--", "sh", "-c", show)
    assert done.returncode == 7, done.stderr
    assert done.stdout.split()[:3] == ["1", "2", run.read_job_id()]
    assert done.stdout.split()[4] == str(tmp_path)
    assert f"on {done.stdout.split()[3]}, its log" in done.stderr
    user("cancel", run.id)
