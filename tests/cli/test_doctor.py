"""The doctor on this machine."""

import json
import os


def test_this_machine_passes_and_nothing_is_left(hpcdist):
    done = hpcdist("doctor", "--local", "--gpus", "1", "--set", "launch.device=cpu")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} <= {"pass", "skip"}
    assert any("2 ranks on 2 nodes" in line for line in lines)
    said = "1 rank per node on CPUs: no GPU, or device=cpu"  # not that none were asked for
    assert f"skip  GPUs           {said}" in lines
    assert os.listdir(hpcdist.folder / "runs") == []


def test_a_folder_that_cannot_be_made_is_a_finding(hpcdist):
    hpcdist.write("file", "")
    done = hpcdist("doctor", "--local", "--json", "--runs", "file/runs")
    assert done.returncode == 1
    found = {one["name"]: one for one in json.loads(done.stdout)}
    assert found["runs folder"]["state"] == "FAIL"
    assert "--runs" in found["runs folder"]["advice"]
    assert found["job"]["state"] == "skip"


def test_wrong_input_ends_with_2_and_a_machine_without_scheduler_with_3(hpcdist):
    hpcdist.environment["PATH"] = str(hpcdist.folder)
    assert hpcdist("doctor", "--nodes", "none").returncode == 2
    assert hpcdist("doctor", "--cluster", "nosuch").returncode == 2
    assert hpcdist("doctor").returncode == 3
