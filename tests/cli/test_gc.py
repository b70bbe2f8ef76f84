"""`hpcdist gc`: what it would free, what it keeps and why, and that it frees nothing else."""

import json
import os
import pty
import subprocess
import time
from pathlib import Path

import pytest

from hpcdist.base.files import write_json
from hpcdist.job.load import load_job
from hpcdist.runs.run import Run, Sweep
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


def test_old_runs_lose_checkpoints_and_code_with_yes_alone_and_keep_all_else(
    hpcdist, make_run, tree
):
    """Bytecode keeps nothing, and what the links of a copy lead to stays."""
    (tree / ".gitignore").write_text("runs/\ndata/\n")
    (tree / "data").mkdir()
    (tree / "data/x").write_text("datum")
    run = make_run()
    code = code_of(run)
    (code / "__pycache__").mkdir()
    (code / "__pycache__/m.pyc").write_text("")
    assert (code / "data/x").read_text() == "datum"
    shown = hpcdist("gc")
    assert (shown.returncode, run.id in shown.stdout) == (0, True)
    assert "nothing was removed: add --yes" in shown.stderr
    value = json.loads(hpcdist("gc", "--json").stdout)
    assert value["removed"] is False
    assert value["bytes_free_to_remove"] >= len(CHECKPOINT)
    assert code.exists()
    assert checkpoints_of(run)
    done = hpcdist("gc", "--yes")
    assert done.returncode == 0, done.stderr
    assert checkpoints_of(run) == []
    assert not code.exists()
    assert (tree / "data/x").read_text() == "datum"
    assert run.log_file(0).read_text() == "log"
    assert run.read_verdict().state == "done"
    assert "2 of 2 can be removed, which frees 2 kB" in done.stdout
    assert done.stderr == "freed 2 kB\n"


def test_on_a_terminal_it_asks(hpcdist, make_run):
    run = make_run()
    for answer in "ny":
        control, terminal = pty.openpty()
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = hpcdist.start("gc", stdin=terminal, **pipes)
        os.write(control, f"{answer}\n".encode())
        _, errors = process.communicate(timeout=100)
        os.close(control)
        os.close(terminal)
        assert b"Remove it?" in errors
        assert bool(checkpoints_of(run)) == code_of(run).exists() == (answer == "n")


@pytest.mark.parametrize("named", [True, False], ids=["named", "all"])
def test_a_run_that_has_not_ended_keeps_its_own_and_what_it_starts_from(hpcdist, make_run, named):
    old, source = make_run(), make_run("source")
    going = make_run(state="pending", sweep=old, resume=source.path)
    assert code_of(old) == code_of(going)
    names = [old.id, source.id, going.id] if named else []
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
    assert (code_of(going) / "train.py").read_text() == "print('as submitted')"


def test_age_counts_from_the_end_of_a_run_and_a_named_one_loses_its_own_at_any(hpcdist, make_run):
    run, other = make_run(days=10.5), make_run("other")

    def reason(*words):
        return items(hpcdist("gc", *words, "--json"))["checkpoints", run.id]

    assert reason() == "the run ended only 10.5 days ago"
    assert reason("--older-than", "11")
    assert reason("--older-than", "10") is None
    done = hpcdist("gc", run.id, "--yes", "--json")
    assert items(done)["checkpoints", other.id] == "the run was not named"
    assert (checkpoints_of(run), code_of(run).exists()) == ([], False)
    assert checkpoints_of(other)
    assert code_of(other).exists()


def test_a_run_that_can_go_on_from_its_checkpoint_keeps_it_until_it_is_named(hpcdist, make_run):
    run = make_run(state="preempted")
    reason = items(hpcdist("gc", "--yes", "--json"))["checkpoints", run.id]
    assert "can continue from its checkpoint" in reason
    assert checkpoints_of(run)
    hpcdist("gc", run.id, "--yes")
    assert checkpoints_of(run) == []


@pytest.mark.parametrize("how", ["written", "changed"])
def test_what_a_job_wrote_into_a_copy_of_the_code_is_never_removed(hpcdist, make_run, how):
    run = make_run()
    code = code_of(run)
    path = code / ("train.py" if how == "changed" else "result.csv")
    path.unlink(missing_ok=True)
    path.write_text("precious")
    done = hpcdist("gc", "--yes", "--json")
    assert f"jobs wrote into it: {path}" in items(done)["code", run.id]
    assert os.path.lexists(path)
    assert checkpoints_of(run) == []


def test_the_code_of_a_sweep_whose_runs_were_deleted_goes_when_it_is_old(hpcdist, make_run, tree):
    make_run()
    sweep = Sweep(tree / "runs" / "train-20260101-000000-aaaa")
    (sweep.path / "code").mkdir(parents=True)
    (sweep.path / "code/train.py").write_text("x")
    (sweep.path / "code/train.py").chmod(0o400)
    sweep.write()
    reason = items(hpcdist("gc", "--yes", "--json"))["code", sweep.id]
    assert "it was made only" in reason
    two_months_ago_s = time.time() - 60 * DAY_S
    os.utime(sweep.path / "code", (two_months_ago_s, two_months_ago_s))
    hpcdist("gc", "--yes")
    assert not (sweep.path / "code").exists()


def test_a_run_of_another_folder_is_refused(hpcdist, make_run, tmp_path):
    run = make_run()
    done = hpcdist("gc", str(run.path), "--runs", tmp_path / "other", "--yes")
    assert done.returncode == 2
    assert "is not among the runs in" in done.stderr
    assert checkpoints_of(run)


def test_what_another_program_keeps_among_the_runs_is_neither_listed_nor_removed(hpcdist, tree):
    foreign = tree / "runs" / "CartPole"
    (foreign / "checkpoints").mkdir(parents=True)
    (foreign / "spec.json").write_text('{"id": "CartPole-v1", "job": {"name": "agent"}}')
    (foreign / "checkpoints" / "best.pt").write_bytes(CHECKPOINT)
    os.utime(foreign, (1.0e9, 1.0e9))
    for verb in ("runs", "status", "watch", "summary"):
        assert "CartPole" not in hpcdist(verb).stdout
    done = hpcdist("gc", "--yes", "--json")
    assert (done.returncode, items(done)) == (0, {}), done.stderr
    assert hpcdist("gc", "CartPole", "--yes").returncode != 0
    assert (foreign / "checkpoints" / "best.pt").read_bytes() == CHECKPOINT
