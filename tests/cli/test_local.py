"""Runs on this machine, from the command to its last line."""

import json

HELLO = """
import os, sys
print("hello from", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
"""

FAILS = """
import os, sys, time
if os.environ["RANK"] == sys.argv[1]:
    raise ValueError("no such luck\\nsecond line")
time.sleep(600)
"""


def test_a_script_runs_on_two_simulated_nodes_and_is_read_again_later(hpcdist):
    hpcdist.write("hello it's.py", HELLO)
    options = ["--nodes", "2", "--gpus", "2", "--local"]
    done = hpcdist("submit", "hello it's.py", *options, "--", "--lr", "0.1 x")
    assert done.returncode == 0, done.stderr
    expected = [f"hello from {rank} of 4 ['--lr', '0.1 x']" for rank in range(4)]
    assert sorted(done.stdout.splitlines()) == [
        f"[rank {rank}] {line}" for rank, line in enumerate(expected)
    ]
    (run,) = hpcdist.runs
    *_, end, command = done.stderr.splitlines()
    assert end.startswith(f"run {run.name}: done in ")
    assert command == "  hpcdist summary last"

    assert hpcdist("logs", "last", "--rank", "1").stdout == f"{expected[1]}\n"
    assert len(hpcdist("logs", run.name[:8], "--follow").stdout.splitlines()) == 4
    assert "its ranks are 0 to 3" in hpcdist("logs", "last", "--rank", "4").stderr

    (listed,) = json.loads(hpcdist("runs", "--json").stdout)
    assert (listed["run"], listed["state"], listed["nodes"]) == (run.name, "done", 2)
    assert f"{run.name}: done" in hpcdist("status").stdout
    (summary,) = json.loads(hpcdist("summary", "--json").stdout)
    assert (summary["run"], summary["state"], summary["world_size"]) == (run.name, "done", 4)

    assert "had ended already: done" in hpcdist("cancel", "last").stderr


def test_a_failure_ends_the_command_with_1_and_its_traceback_comes_last(hpcdist):
    hpcdist.write("fails.py", FAILS)
    done = hpcdist("submit", "fails.py", "--gpus", "3", "--local", "--json", "--", "1")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert (answer["state"], answer["exit_code"]) == ("failed", 1)
    first = answer["verdict"]["first"]
    assert (first["rank"], first["report"]["exception"]) == (1, "ValueError")
    *_, cause, log, verdict = done.stderr.splitlines()
    assert "[rank 1] ValueError: no such luck" in done.stderr
    assert "rank 1 failed first; the last lines of logs/rank-00001.log:" in done.stderr
    assert cause == "  second line"
    assert log == f"log of rank 1: {answer['path']}/logs/rank-00001.log"
    assert verdict.startswith(f"run {answer['run']} failed: rank 1 ")
    assert "ValueError: no such luck second line; " in verdict
    status = hpcdist("status", answer["run"])
    assert "verdict    rank 1 " in status.stdout
