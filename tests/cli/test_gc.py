"""`hpcdist gc`: what it would free, what it keeps and why, and that it frees nothing else."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from terminals import Terminal

from hpcdist.base.files import write_json
from hpcdist.job.load import load_job
from hpcdist.runs.run import Run
from hpcdist.runs.snapshot import copy_code
from hpcdist.runs.verdict import Verdict
from hpcdist.submission.plan import PlannedSubmission, plan_run
from hpcdist.submission.submit import write_spec

DAY_S = 86400.0
CHECKPOINT = b"x" * 2000


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A git work tree beside which runs are; the working directory."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "train.py").write_text("print('as submitted')")
    (tmp_path / ".gitignore").write_text("runs/\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)
    return tmp_path


@pytest.fixture
def make_run(tree):
    """Make a run that ended so many days ago, or has not, from a snapshot of the tree as it is."""

    def make(name="train", *, days=60.0, state="done", resume=None, sweep=None):
        runs = tree / "runs"
        job = load_job("train.py")
        planned = plan_run(job, scheduler="local", snapshot=True, runs=runs)
        run = Run.create(runs, name)
        submission = PlannedSubmission(plans=[planned])
        if sweep is None:  # else that of a run before
            copy_code(planned.workspace.snapshot, run.path)
        (planned,) = submission.at((sweep or run).path).plans
        write_spec(run, planned)
        if resume is not None:
            spec = json.loads(run.spec_file.read_text())
            spec["job"]["checkpoint"] = {"resume": str(resume)}
            write_json(run.spec_file, spec)
        (run.checkpoints_folder / "step-00000001.pt").write_bytes(CHECKPOINT)
        run.log_file(0).write_text("log")
        if state not in {"pending", "running"}:
            ended_s = time.time() - days * DAY_S
            run.write_verdict(Verdict(kind="done", state=state, message="", time_s=ended_s))
        return run

    return make


def code_of(run):
    return Path(run.read_spec().snapshot.folder)


def checkpoints_of(run):
    return os.listdir(run.checkpoints_folder)


def items(done):
    """Reason by what and name."""
    value = json.loads(done.stdout)
    return {(item["what"], item["name"]): item["kept_because"] for item in value["items"]}


def test_old_runs_lose_checkpoints_and_code_with_yes_alone_and_keep_all_else(hpcdist, make_run):
    """Bytecode keeps nothing."""
    run = make_run()
    code = code_of(run)
    (code / "__pycache__").mkdir()
    (code / "__pycache__/m.pyc").write_text("")
    shown = hpcdist("gc")
    assert (shown.returncode, run.id in shown.stdout) == (0, True)
    assert "nothing was removed: add --yes" in shown.stderr
    assert code.exists()
    assert checkpoints_of(run)
    done = hpcdist("gc", "--yes")
    assert done.returncode == 0, done.stderr
    assert checkpoints_of(run) == []
    assert not code.exists()
    assert run.log_file(0).read_text() == "log"
    assert run.read_verdict().state == "done"
    assert "2 of 2 can be removed, which frees 2 kB" in done.stdout
    assert done.stderr == "freed 2 kB\n"


def test_on_a_terminal_it_asks(hpcdist, make_run):
    run = make_run()
    for answer in "ny":
        terminal = Terminal(hpcdist, "gc")
        terminal.wait_for("Remove it?")
        terminal.type(f"{answer}\n".encode())
        terminal.finish()
        assert bool(checkpoints_of(run)) == code_of(run).exists() == (answer == "n")


def test_a_run_that_has_not_ended_keeps_its_own_and_what_it_starts_from(hpcdist, make_run):
    old, source = make_run(), make_run("source")
    going = make_run(state="pending", sweep=old, resume=source.path)
    assert code_of(old) == code_of(going)
    names = [old.id, source.id, going.id]
    done = hpcdist("gc", *names, "--older-than", "0", "--yes", "--json")
    assert items(done) == {
        ("checkpoints", old.id): None,
        ("checkpoints", source.id): f"run {going.id}, which starts from them, is pending",
        ("checkpoints", going.id): "the run is pending",
        ("code", old.id): f"run {going.id} is pending",
        ("code", source.id): None,
    }
    assert checkpoints_of(old) == []
    assert checkpoints_of(going)
    assert checkpoints_of(source)


def test_a_young_run_and_one_that_can_go_on_keep_theirs_until_they_are_named(hpcdist, make_run):
    young, early = make_run(days=10.5), make_run("early", state="preempted")
    for days, reason in (((), "the run ended only 10.5 days ago"), (("--older-than", "10"), None)):
        found = items(hpcdist("gc", *days, "--json"))
        assert found["checkpoints", young.id] == reason
        assert "can continue from its checkpoint" in found["checkpoints", early.id]
    done = hpcdist("gc", young.id, "--yes", "--json")
    assert items(done)["checkpoints", early.id] == "the run was not named"
    assert (checkpoints_of(young), code_of(young).exists()) == ([], False)
    assert checkpoints_of(early)
    hpcdist("gc", early.id, "--yes")
    assert checkpoints_of(early) == []


def test_what_a_job_wrote_into_a_copy_of_the_code_is_never_removed(hpcdist, make_run):
    run = make_run()
    path = code_of(run) / "result.csv"
    path.write_text("precious")
    done = hpcdist("gc", "--yes", "--json")
    assert f"jobs wrote into it: {path}" in items(done)["code", run.id]
    assert os.path.lexists(path)
    assert checkpoints_of(run) == []


def test_what_another_program_keeps_among_the_runs_is_neither_listed_nor_removed(hpcdist, tree):
    foreign = tree / "runs" / "CartPole"
    (foreign / "checkpoints").mkdir(parents=True)
    (foreign / "spec.json").write_text('{"id": "CartPole-v1", "job": {"name": "agent"}}')
    (foreign / "checkpoints" / "best.pt").write_bytes(CHECKPOINT)
    os.utime(foreign, (1.0e9, 1.0e9))
    assert "CartPole" not in hpcdist("runs").stdout
    done = hpcdist("gc", "--yes", "--json")
    assert (done.returncode, items(done)) == (0, {}), done.stderr
    assert hpcdist("gc", "CartPole", "--yes").returncode != 0
    assert (foreign / "checkpoints" / "best.pt").read_bytes() == CHECKPOINT
