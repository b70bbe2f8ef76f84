"""Runs on this machine, from the command to its last line."""

import json
import os
import shlex
import subprocess
import sys

from waiting import wait_for

from hpcdist.runs.run import Run

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
    assert len(hpcdist("logs", run.name[:8]).stdout.splitlines()) == 4
    assert hpcdist("logs", "last", "--follow").stdout.splitlines()[-1].startswith("[rank ")
    refused = hpcdist("logs", "last", "--rank", "4")
    assert refused.returncode == 2
    assert "its ranks are 0 to 3" in refused.stderr

    (listed,) = json.loads(hpcdist("runs", "--json").stdout)
    assert (listed["run"], listed["state"], listed["nodes"]) == (run.name, "done", 2)
    assert f"{run.name}  done" in hpcdist("runs").stdout
    assert f"{run.name}: done" in hpcdist("status").stdout
    (summary,) = json.loads(hpcdist("summary", "--json").stdout)
    assert (summary["run"], summary["state"], summary["world_size"]) == (run.name, "done", 4)

    ended = hpcdist("cancel", "last")
    assert ended.returncode == 0
    assert "had ended already: done" in ended.stderr


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


def test_the_runs_folder_and_a_script_have_any_name(hpcdist):
    name = os.fsdecode(b"hello\xff.py")  # which is not UTF-8
    hpcdist.write(name, HELLO)
    place = hpcdist.folder / "some 'where'\nelse"
    done = hpcdist("submit", name, "--local", "--json", "--runs", place)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["run"]
    assert os.listdir(place) == [run]
    hpcdist.environment["HPCDIST_RUNS"] = str(place)
    assert json.loads(hpcdist("runs", "--json").stdout)[0]["run"] == run
    assert hpcdist("status").returncode == 0


def test_a_run_whose_submission_was_killed_runs_and_can_be_cancelled(hpcdist, processes_of):
    hpcdist.write("up.py", "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    hpcdist("submit", "up.py", "--scheduler", "local")
    (folder,) = hpcdist.runs
    run = Run(folder)
    wait_for(lambda: run.log_file(0).exists() and run.log_file(0).read_text())
    run.submission_file.unlink()
    os.utime(folder, (100.0, 100.0))
    (listed,) = json.loads(hpcdist("runs", "--json").stdout)
    assert (listed["state"], listed["scheduler"]) == ("running", "local")
    (cancelled,) = json.loads(hpcdist("cancel", "last", "--json").stdout)
    assert (cancelled["state_before"], cancelled["state"]) == ("running", "cancelled")
    wait_for(lambda: not processes_of(folder))


def test_ranks_may_open_as_many_files_as_the_hard_limit_and_a_verdict_says_what_to_raise(tmp_path):
    (tmp_path / "hold.py").write_text(
        "import resource\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
        "held = [open('/dev/null') for _ in range(500)]\n"
    )
    command = [sys.executable, "-m", "hpcdist", "submit", "hold.py", "--local", "--gpus=1"]
    limited = f"ulimit -Sn 40; ulimit -Hn 300; exec {shlex.join(command)}"
    options = {"cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-c", limited], check=False, **options)
    assert done.returncode == 1
    assert "(300, 300)" in next(tmp_path.glob("runs/hold-*/logs/rank-00000.log")).read_text()
    assert "Too many open files: '/dev/null'; raise the limit of open files where" in done.stderr


def test_a_verdict_names_a_setup_line_that_had_failed_before(hpcdist):
    """The scheduler's script tells the agent by this variable."""
    hpcdist.environment["HPCDIST_SETUP_FAILED"] = "exit code 127: ml cuda/99"
    hpcdist.write("raises.py", "raise ValueError('it cannot go on')")
    assert hpcdist("submit", "raises.py", "--local").returncode == 1
    verdict = json.loads((hpcdist.runs[0] / "verdict.json").read_text())
    assert verdict["first"]["report"]["exception"] == "ValueError"
    setup = "; before that, a line of the profile's setup had failed (exit code 127: ml cuda/99)"
    assert verdict["message"].endswith(setup)
