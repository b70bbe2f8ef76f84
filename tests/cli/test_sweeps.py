"""Sweeps and dependencies on this machine, from the command to its last line."""

import json
import os
import signal
import subprocess

from hpcdist.runs.run import Sweep

SAYS = """
import os, sys, time
from pathlib import Path
word = sys.argv[1]
print("says", word, "as", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if word == "fail":
    sys.exit(3)
if word.startswith("wait"):  # for the file of another
    Path(word).touch()
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
"""


def read_until(process, word):
    text = ""
    for line in process.stderr:
        text += line
        if word in line:
            return text
    return text


def start(hpcdist, *options):
    hpcdist.write("says.py", SAYS)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return hpcdist.start("submit", "says.py", "--local", *options, **pipes)


def test_points_run_one_after_the_other_and_a_failure_stops_none(hpcdist):
    hpcdist.write("says.py", SAYS)
    sweep = ["--sweep", "nodes=1,2 args=[a],[fail]"]
    done = hpcdist("submit", "says.py", "--local", *sweep)
    assert done.returncode == 1, done.stderr
    name, *lines = done.stdout.splitlines()
    said = [line.partition("says ")[2] for line in lines if "says " in line]
    assert said[:2] == ["a as 0 of 1", "fail as 0 of 1"]
    assert sorted(said[2:4]) == ["a as 0 of 2", "a as 1 of 2"]
    assert f"run {name}-002 (3 of 4): nodes=2 args=[a]" in done.stderr
    assert f"sweep {name}: 2 done, 2 failed" in done.stderr
    spec = json.loads((hpcdist.folder / "runs" / f"{name}-003" / "spec.json").read_text())
    wanted = {"id": name, "index": 3, "num_points": 4, "repeat": 0}
    assert wanted.items() <= spec["sweep"].items()
    assert spec["sweep"]["point"] == {"resources.nodes": 2, "args": ["fail"]}

    for named in ("last", name[:-2]):
        assert f"{name}: 4 runs, 2 done, 2 failed" in hpcdist("status", named).stdout
    assert len(json.loads(hpcdist("summary", name, "--json").stdout)) == 4
    (line,) = hpcdist("runs").stdout.splitlines()[1:]
    assert line.startswith(f"{name}  2 done, 2 failed")
    assert line.endswith("says, sweep of 4 runs")
    assert hpcdist("cancel", name).stderr.count("had ended already") == 4


def test_repeats_have_seeds_of_their_own_unless_the_user_wants_the_same(hpcdist):
    hpcdist.write("bin/sbatch", "#!/bin/sh\ncat >/dev/null; echo Submitted batch job 7").chmod(
        0o755
    )
    hpcdist.environment["PATH"] = f"{hpcdist.folder}/bin{os.pathsep}{os.environ['PATH']}"
    once = ("submit", "ddp", "--scheduler", "slurm", "--repeat", "2", "--set", "train.seed=7")
    for options, seeds in (((), [7, 8]), (("--same-seed",), [7, 7])):
        done = hpcdist(*once, *options)
        assert done.returncode == 0, done.stderr
        runs = Sweep(hpcdist.folder / "runs" / done.stdout.splitlines()[0]).runs()
        assert [run.read_launch()[0].train.seed for run in runs] == seeds


def test_an_interruption_ends_what_runs_and_starts_no_more(hpcdist):
    process = start(hpcdist, "--json", "--sweep", "args=[wait1,never],[c]")
    assert "says wait1" in read_until(process, "says wait1")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 130, stderr
    first, second = json.loads(stdout)["runs"]
    assert first["verdict"]["state"] == "cancelled"
    assert second["run"] is None
    assert len(list(hpcdist.folder.glob("runs/*/spec.json"))) == 1


def test_a_sweep_that_is_cancelled_from_elsewhere_starts_no_more(hpcdist):
    process = start(hpcdist, "--sweep", "args=[wait1,never],[b]")
    name = process.stdout.readline().strip()
    assert process.stdout.readline() == "[rank 0] says wait1 as 0 of 1\n"
    assert f"{name}-000: cancelled" in hpcdist("cancel", name).stderr
    stdout, stderr = process.communicate(timeout=100)
    assert (process.returncode, stdout) == (1, ""), stderr
    assert f"sweep {name}: 1 cancelled" in stderr
    assert len(list(hpcdist.folder.glob("runs/*/spec.json"))) == 1


def test_a_mistake_in_any_point_is_found_before_the_first_runs(hpcdist):
    hpcdist.write("says.py", SAYS)
    refusals = {
        "nodes=1,2,x": '--sweep nodes=x: resources.nodes is "x", must be a whole number',
        "nodes=1,100000": "100000 ranks on this machine need",
        "train.lr=1,2": "--sweep train.lr=1: train is not a known key",
    }
    for sweep, message in refusals.items():
        done = hpcdist("submit", "says.py", "--local", "--sweep", sweep)
        assert (done.returncode, done.stdout) == (2, ""), sweep
        assert message in done.stderr
    assert hpcdist.runs == []


def test_a_run_waits_for_another_and_goes_by_its_verdict(hpcdist):
    hpcdist.write("says.py", SAYS)
    quiet = ["submit", "says.py", "--scheduler", "local"]
    waiting = hpcdist(*quiet, "--", "wait1", "gate").stdout.strip()
    process = start(hpcdist, "--after", waiting, "--", "b")
    assert f"waiting for the end of run {waiting}" in read_until(process, "waiting")
    assert len(hpcdist.runs) == 1
    hpcdist.write("gate", "")
    stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 0, stderr
    assert stdout == "[rank 0] says b as 0 of 1\n"

    failed = json.loads(hpcdist("submit", "says.py", "--local", "--json", "--", "fail").stdout)
    name = failed["run"]
    for what, code in ((name, 2), (f"any:{name}", 0)):
        done = hpcdist("submit", "says.py", "--local", "--after", what, "--", "b")
        assert done.returncode == code, done.stderr
        assert code == 0 or f"--after {name}: run {name} is failed" in done.stderr
