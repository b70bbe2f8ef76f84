"""`hpcdist dev` on this machine: one run after the other in what it holds."""

import json
import os
import signal
import subprocess

import pytest
from waiting import wait_for

from hpcdist.base.errors import RunNotFoundError
from hpcdist.monitor.living import find_living_rank
from hpcdist.runs.run import Run, find_run
from hpcdist.runs.spec import RunSpec

WORK = """
import os, sys, time
print("torch" in sys.modules, os.environ["WORLD_SIZE"], os.environ.get("COLOUR"), flush=True)
import torch
import words
print(words.SAID, torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], flush=True)
time.sleep(float(sys.argv[1]))
"""
SETS = """
import os, sys
print("torch" in sys.modules)
os.environ["OMP_NUM_THREADS"] = "1"
import torch
print(torch.get_num_threads())
"""


@pytest.fixture
def dev(hpcdist):
    """A dev run of one node with two ranks' room."""
    hpcdist.write("work.py", WORK)
    hpcdist.write("words.py", "SAID = 'first'\n")
    done = hpcdist("dev", "--local", "--gpus", "2", "--set", "launch.device=cpu", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["is_ready"]
    yield told["run"]
    hpcdist("cancel", told["run"])


def state(hpcdist, name):
    (told,) = json.loads(hpcdist("status", name, "--json").stdout)
    return told["state"]


def log(run, rank=0):
    return (run / f"logs/rank-{rank:05d}.log").read_text().split("\n")


def test_runs_start_with_torch_and_the_files_as_they_are(hpcdist, dev):
    first = hpcdist("submit", "work.py", "--in", "dev", "--gpus", "2", "--", "0")
    assert first.returncode == 0, first.stderr
    hpcdist.write("words.py", "SAID = 'second'\n")
    second = hpcdist("submit", "work.py", "--in", dev, "--set", "environment.COLOUR=red", "--", "0")
    assert second.returncode == 0, second.stderr
    hpcdist.write("sets.py", "import torch")
    assert hpcdist("submit", "sets.py", "--in", dev).returncode == 0
    hpcdist.write("sets.py", SETS)
    assert hpcdist("submit", "sets.py", "--in", dev).returncode == 0
    hpcdist.write("fails.py", "import torch\nraise ValueError('no')\n")
    failed = hpcdist("submit", "fails.py", "--in", dev)
    assert failed.returncode == 1
    assert "ValueError: no" in failed.stderr
    _, one, two, _, sets, _ = hpcdist.runs
    assert [log(one)[0], log(one, 1)[0], log(two)[0]] == [*["True 2 None"] * 2, "True 1 red"]
    assert [log(one)[1].split()[0], log(two)[1].split()[0]] == ["first", "second"]
    for run in (one, two):
        _, threads, wanted = log(run)[1].split()
        assert threads == wanted
    assert log(sets)[:2] == ["False", "1"]  # it imports torch itself, after what it sets
    for options, said in (
        (("--gpus", "3"), f"resources.gpus is 3, and {dev} has 2"),
        (("--repeat", "2"), "--in and --sweep contradict each other"),
        (("--here",), "--here and --in contradict each other"),
    ):
        refused = hpcdist("submit", "work.py", "--in", dev, *options)
        assert refused.returncode == 2
        assert said in refused.stderr
    assert len(hpcdist.runs) == 6
    assert state(hpcdist, dev) == "running"


def test_what_waits_and_what_runs_is_ended_and_the_next_one_starts(hpcdist, dev):
    running = hpcdist.start(
        "submit", "work.py", "--in", dev, "--", "600", stdout=subprocess.PIPE, stderr=-1, text=True
    )
    assert running.stdout.readline().startswith("[rank 0]")
    waits = begin(hpcdist, dev)
    assert state(hpcdist, waits) == "pending"
    assert hpcdist("cancel", waits).returncode == 0
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    killed = begin(hpcdist, dev)
    run = hpcdist.runs[-1]
    wait_for(lambda: (run / "logs/rank-00000.log").exists() and log(run)[0] == "True 1 None")
    agent = json.loads((run / "launch/agent-00000.json").read_text())["process"]["pid"]
    os.kill(agent, signal.SIGKILL)
    wait_for(lambda: state(hpcdist, killed) == "lost")
    last = begin(hpcdist, dev)
    wait_for(lambda: state(hpcdist, last) == "running")
    assert hpcdist("cancel", "dev").returncode == 0
    states = [state(hpcdist, run.name) for run in hpcdist.runs]
    assert states == ["cancelled", "cancelled", "cancelled", "lost", "cancelled"]
    hpcdist.write("work.py", "print('resumed')")
    resumed = hpcdist("resume", last)
    assert resumed.returncode == 0, resumed.stderr
    wait_for(lambda: state(hpcdist, last) == "done")


def test_what_cannot_be_started_is_lost_and_ends_no_nodes(hpcdist, dev):
    first, damaged = begin(hpcdist, dev), begin(hpcdist, dev)
    (hpcdist.folder / "runs" / damaged / "spec.json").write_text("{}")
    assert hpcdist("cancel", first).returncode == 0
    wait_for(lambda: state(hpcdist, damaged) in {"failed", "lost"})
    assert state(hpcdist, dev) == "running"


def test_nodes_whose_server_was_killed_start_nothing_again_and_take_no_runs(hpcdist):
    hpcdist.write("work.py", WORK)
    hpcdist.write("words.py", "SAID = 'first'\n")
    options = ("--set", "launch.device=cpu", "--set", "launch.max_restarts=2", "--json")
    told = json.loads(hpcdist("dev", "--local", *options).stdout)
    begun = begin(hpcdist, "dev")
    wait_for(lambda: state(hpcdist, begun) == "running")
    held, run = hpcdist.runs
    wait_for(lambda: (run / "logs/rank-00000.log").exists() and log(run)[0] == "True 1 None")
    os.kill(find_living_rank(Run(held), 0).pid, signal.SIGKILL)
    wait_for(lambda: state(hpcdist, told["run"]) == "failed")
    assert state(hpcdist, begun) == "lost"
    assert [path.name for path in (run / "attempts").iterdir()] == ["00000"]
    refused = hpcdist("submit", "work.py", "--in", "dev")
    assert "takes no runs" in refused.stderr


def test_a_run_that_outlasts_the_nodes_was_not_cancelled(hpcdist):
    hpcdist.write("work.py", WORK)
    hpcdist.write("words.py", "SAID = 'first'\n")
    limit = ("--set", "resources.time_limit_min=0.3", "--set", "launch.device=cpu")
    assert hpcdist("dev", "--local", *limit).returncode == 0
    ended = hpcdist("submit", "work.py", "--in", "dev", "--json", "--", "600")
    assert ended.returncode == 1
    verdict = json.loads(ended.stdout)["verdict"]
    assert verdict["state"] == "failed"
    assert "had been asked to stop by SIGUSR2, and did not" in verdict["message"]


def test_nodes_that_were_lost_take_no_runs(hpcdist, dev):
    (held,) = hpcdist.runs
    agent = json.loads((held / "launch/agent-00000.json").read_text())["process"]["pid"]
    os.kill(agent, signal.SIGKILL)
    wait_for(lambda: state(hpcdist, dev) == "lost")
    refused = hpcdist("submit", "work.py", "--in", "dev", "--", "0")
    assert refused.returncode == 2
    assert "takes no runs" in refused.stderr


def begin(hpcdist, dev):
    done = hpcdist("submit", "work.py", "--in", dev, "--detach", "--json", "--", "600")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["run"]


def test_it_ends_by_itself_when_nobody_uses_it(hpcdist):
    arguments = ("dev", "--local", "--set", "launch.device=cpu", "--idle", "0.05", "--json")
    done = hpcdist(*arguments)
    assert done.returncode == 0, done.stderr
    (run,) = hpcdist.runs
    wait_for(lambda: state(hpcdist, run.name) == "done")
    said = log(run)
    assert said[1].startswith("it ends in ")
    assert said[2] == "it ends: 0.05 minutes without a run or a shell"
    refused = hpcdist("submit", "check", "--in", "dev")
    assert refused.returncode == 2
    assert "takes no runs" in refused.stderr


def test_runs_that_only_look_like_held_nodes_are_not_taken(tmp_path):
    ordinary = Run.create(tmp_path, "dev")
    ordinary.write_spec(RunSpec(id=ordinary.id, created_s=1.0, job={"name": "dev", "args": ["1"]}))
    with pytest.raises(RunNotFoundError):
        find_run(tmp_path, "dev")
