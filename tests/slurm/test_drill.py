"""`hpcdist drill` on a cluster: ranks, agents and the directory of the run are on other nodes."""

import json

import pytest
from cluster_user import User

SAVES = """\
import os, sys, time
from pathlib import Path
from hpcdist import record
folder, rank = Path(os.environ["HPCDIST_RUN_DIR"]), int(os.environ["RANK"])
saved = sorted(folder.glob("*.ckpt"))
step = int(saved[-1].read_text()) if saved else 0
record.start(first_step=step)
while True:
    time.sleep(0.02)
    step += 1
    record.step(samples=1, loss=1 / step)
    is_over = record.should_stop()
    if rank == 0 and (is_over or step % 20 == 0):
        (folder / "new").write_text(str(step))
        (folder / "new").rename(folder / f"{step:06d}.ckpt")
    if is_over:
        sys.exit(record.EXIT_STOPPED)
"""
TWO_NODES = ("--nodes", "2", "--gpus", "1", "--set", "launch.device=cpu")


@pytest.mark.timeout(240)
def test_a_drill_kills_ranks_and_agents_of_other_nodes_and_warns_them(slurm, tmp_path):
    user = User(slurm, tmp_path)
    script = user.write("saves.py", SAVES)
    only = ("--for", "30s", "--only", "kill-rank,time-limit,kill-agent")
    done = user("drill", script, *TWO_NODES, *only, "--json", timeout=200)
    found = {one["name"]: one for one in json.loads(done.stdout)["disturbances"]}
    assert [one["is_verdict_right"] for one in found.values()] == [True, True, True], found
    assert all(one["went_on"].startswith("step ") for one in found.values()), found
    assert found["time-limit"]["lost_steps"] == 0
    assert done.returncode == 0, done.stderr
