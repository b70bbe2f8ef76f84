"""A scheduler that hpcdist does not know: a folder, and a line in the table, are all it takes."""

import json
import os
import signal
from pathlib import Path

import pytest
import yaml
from cluster_user import COUNT_BY_RANK
from forked_command import command_server, run_command
from waiting import wait_for

from hpcdist.runs.run import Run

SIXTH = Path(__file__).parent / "sixth"
TWO = ("--nodes", "2", "--gpus", "1")
ON_PILE = ("--scheduler", "pile")


@pytest.fixture(scope="module")
def command_process(lasting_process):
    """The process that calls are forked from, with the sixth scheduler on its path, as all that is
    started meanwhile."""
    paths = [str(SIXTH), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        with command_server(lasting_process) as server:
            yield server


@pytest.fixture
def hpcdist(tmp_path, monkeypatch, command_process):
    """The command, in a folder of its own."""
    folder, pile = tmp_path / "work", tmp_path / "pile"
    folder.mkdir()
    pile.mkdir()
    monkeypatch.setenv("PILE", str(pile))
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)
    (folder / "count.py").write_text(COUNT_BY_RANK)

    def call(*words, code=0):
        done = run_command(command_process, words, cwd=folder, environment=os.environ, limit_s=100)
        assert done.returncode == code, done.stderr
        return done

    call.folder, call.pile = folder, pile
    return call


def submit(hpcdist, *words):
    done = hpcdist("submit", "count.py", *ON_PILE, *words)
    return Run(hpcdist.folder / "runs" / done.stdout.split()[0])


def state_of(hpcdist, run):
    (found,) = json.loads(hpcdist("status", run.id, "--json").stdout)
    return found["state"]


def has_begun(run, life=0):
    def is_there():
        return run.newest_attempt() >= life and len(list(run.event_files())) >= 2 * (life + 1)

    return is_there


def test_submit_wait_shows_the_logs_and_ends_with_the_runs_code(hpcdist):
    (hpcdist.folder / "gate").touch()
    done = hpcdist("submit", "count.py", *ON_PILE, *TWO, "--wait")
    assert "counted from 0 as rank 0" in done.stdout
    assert "box0" in done.stdout + done.stderr
    (hpcdist.folder / "fail.py").write_text("raise SystemExit(3)\n")
    hpcdist("submit", "fail.py", *ON_PILE, "--wait", code=1)


def test_render_prints_its_script_and_explains_it(hpcdist):
    done = hpcdist("render", "count.py", *ON_PILE, *TWO)
    assert done.stdout.startswith("#!/bin/bash\n#PILE name RUN nodes 2\n")
    explained = hpcdist("explain", "count.py", *ON_PILE, *TWO)
    assert "boxes: 2" in explained.stdout
    assert "the pile is a test's" in done.stderr


def test_status_logs_after_and_cancel_work(hpcdist):
    run = submit(hpcdist, *TWO)
    wait_for(has_begun(run))
    after = submit(hpcdist, "--after", f"any:{run.id}")
    assert state_of(hpcdist, run) == "running"
    shown = hpcdist("status", after.id).stdout
    assert "pending" in shown
    assert "it waits for others" in shown
    assert "pile job p1" in hpcdist("status", run.id).stdout
    hpcdist("cancel", run.id)
    assert state_of(hpcdist, run) == "cancelled"
    (hpcdist.folder / "gate").touch()
    wait_for(after.read_verdict)
    assert state_of(hpcdist, after) == "done"
    assert "counted from 0" in hpcdist("logs", after.id).stdout


def test_a_run_that_is_stopped_is_started_again_and_goes_on(hpcdist):
    run = submit(hpcdist, *TWO)
    wait_for(has_begun(run))
    job = json.loads((hpcdist.pile / "p1" / "job.json").read_text())
    os.kill(job["pid"], signal.SIGUSR2)
    wait_for(has_begun(run, 1))
    (hpcdist.folder / "gate").touch()
    wait_for(run.read_verdict)
    assert state_of(hpcdist, run) == "done"
    begin = (run.path / "saved-0").read_text()
    assert f"counted from {begin} as rank 0" in hpcdist("logs", run.id).stdout


def test_a_sweep_is_submitted_summarized_and_accounted(hpcdist):
    (hpcdist.folder / "gate").touch()
    words = ("--sweep", "args=[a],[b]", "--repeat", "2", "--max-parallel", "2", "--summary-after")
    done = hpcdist("submit", "count.py", *ON_PILE, *words, "--wait")
    assert "4 runs submitted to pile, as 4 jobs" in done.stderr
    runs = json.loads(hpcdist("summary", "--json").stdout)
    assert [run["accounting"]["state"] for run in runs] == ["done"] * 4
    sweep = done.stdout.split()[0]
    wait_for((hpcdist.folder / "runs" / sweep / "summary.txt").exists)


def test_a_sweep_runs_on_several_clusters_of_which_one_is_this_machine(hpcdist):
    clusters = {"boxes": {"scheduler": "pile"}, "laptop": {"scheduler": "local"}}
    (hpcdist.folder / "hpcdist.yaml").write_text(json.dumps({"clusters": clusters}))
    (hpcdist.folder / "gate").touch()
    words = ("--sweep", "cluster=boxes,laptop,local")
    done = hpcdist("render", "count.py", *words)
    assert done.stdout.count("#PILE") == done.stdout.count("# ---- script 1 of 3 ----") == 1
    done = hpcdist("submit", "count.py", *words, "--wait", "--json")
    swept = json.loads(done.stdout)
    assert swept["scheduler"] == "pile, local"
    assert swept["jobs"][0]["job_id"] == "p1"
    assert [run["verdict"]["state"] for run in swept["runs"]] == ["done"] * 3
    assert [run["point"] for run in swept["runs"]] == [
        {"cluster": name} for name in ("boxes", "laptop", "local")
    ]
    listed = json.loads(hpcdist("runs", "--json").stdout)
    assert [(run["scheduler"], run["cluster"]) for run in listed] == [
        ("pile", "boxes"),
        ("local", "laptop"),
        ("local", None),
    ]
    assert "boxes, laptop, -" in hpcdist("runs").stdout
    done = hpcdist("submit", "count.py", *words, "--cluster", "boxes", code=2)
    assert "--sweep cluster and --cluster boxes contradict each other" in done.stderr
    done = hpcdist("submit", "count.py", *words, "--summary-after", code=2)
    assert "is for the runs of one scheduler, and the sweep has pile, local" in done.stderr
    done = hpcdist("submit", "count.py", "--sweep", "cluster=boxes,box", code=2)
    assert "there is no cluster called 'box'" in done.stderr


def test_doctor_examines_it_and_its_job(hpcdist):
    found = json.loads(hpcdist("doctor", *ON_PILE, "--json").stdout)
    states = {finding["name"]: finding["state"] for finding in found}
    assert (states["pile"], states["directives"], states["collective"]) == ("pass", "pass", "pass")
    assert "FAIL" not in states.values()


def test_profiles_name_it_and_detect_makes_one(hpcdist):
    text = hpcdist("cluster", "detect", *ON_PILE).stdout
    assert yaml.safe_load(text)["clusters"]["boxes"]["scheduler"] == "pile"
    (hpcdist.folder / "hpcdist.yaml").write_text(text)
    shown = hpcdist("cluster", "show").stdout
    assert "pile" in shown
    assert "lsf" not in shown
    assert "#PILE" in hpcdist("render", "count.py").stdout


def test_what_it_cannot_do_is_said(hpcdist):
    done = hpcdist("submit", "count.py", "--here", *ON_PILE, code=2)
    assert "--here and --scheduler pile contradict each other" in done.stderr
    done = hpcdist("submit", "count.py", "--scheduler", "heap", code=2)
    assert "pile" in done.stderr
