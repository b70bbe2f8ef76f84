"""`hpcdist drill` on a cluster: ranks, agents and the directory of the run are on other nodes."""

import json

import pytest
from cluster_user import User

SAVES = """\
import os, signal, sys, time
from pathlib import Path
folder, rank = Path(os.environ["HPCDIST_RUN_DIR"]), int(os.environ["RANK"])
told = []
signal.signal(signal.SIGUSR2, lambda *_: told.append(1))
saved = sorted(folder.glob("*.ckpt"))
count = int(saved[-1].read_text()) if saved else 0
while True:
    time.sleep(0.02)
    count += 1
    if rank == 0 and (told or count % 20 == 0):
        (folder / "new").write_text(str(count))
        (folder / "new").rename(folder / f"{count:06d}.ckpt")
    if told:
        sys.exit(75)
"""
TWO_NODES = ("--nodes", "2", "--gpus", "1", "--set", "launch.device=cpu")


@pytest.mark.timeout(240)
def test_a_drill_kills_ranks_and_agents_of_other_nodes_and_warns_them(slurm, tmp_path):
    user = User(slurm, tmp_path)
    script = user.write("saves.py", SAVES)
    only = ("--for", "30s", "--only", "kill-rank,warning,kill-agent")
    done = user("drill", script, *TWO_NODES, *only, "--json", timeout=200)
    found = {one["name"]: one for one in json.loads(done.stdout)["disturbances"]}
    assert [one["is_verdict_right"] for one in found.values()] == [True, True, True], found
    assert {one["went_on"] for one in found.values()} == {"its checkpoint"}, found
    assert found["warning"]["lost"] == "nothing"
    assert done.returncode == 0, done.stderr
