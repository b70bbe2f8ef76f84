"""Freeing disk space where others can exchange folders: nothing goes but what was listed."""

import os
import time

import pytest
from another_user import NOBODY, as_nobody, needs_root

from hpcdist.base import files
from hpcdist.monitor.garbage import find_garbage, remove
from hpcdist.runs.run import Run, all_runs
from hpcdist.runs.spec import RunSpec, UsedSnapshot
from hpcdist.runs.verdict import Verdict


@pytest.fixture
def runs(reachable):
    """A folder of runs that the world may write."""
    folder = reachable / "runs"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def ended_run(runs, name="train-1"):
    run = Run(runs / name)
    run.make()
    files.write_json(run.spec_file, {"id": run.id, "created_s": 1.7e9, "job": {"name": "train"}})
    (run.checkpoints_folder / "step-1").mkdir()
    (run.checkpoints_folder / "step-1" / "model.pt").write_text("trained")
    done = Verdict(kind="done", state="done", message="", exit_code_of_run=0, time_s=time.time())
    run.write_verdict(done)
    return run


def candidates(runs):
    listed = all_runs(runs)
    return find_garbage(runs, listed, {run.id: "done" for run in listed}, older_than_s=0.0)


@needs_root
def test_a_run_that_is_exchanged_while_the_question_waits_loses_nothing(runs):
    run, other = ended_run(runs), ended_run(runs, "train-2")
    (found,) = [one for one in candidates(runs) if one.name == run.id]

    def exchange():
        run.path.rename(runs / "away")
        other.path.rename(run.path)

    as_nobody(exchange)
    assert "another folder has taken its place" in remove(found)
    for path in (runs / "away", run.path):
        assert (path / "checkpoints" / "step-1" / "model.pt").read_text() == "trained"


@pytest.mark.parametrize("what", ["link", pytest.param("foreign", marks=needs_root)])
def test_what_is_a_link_or_foreign_is_listed_with_the_reason_and_kept(runs, reachable, what):
    if what == "foreign":
        run = ended_run(runs)
        os.chown(run.path, NOBODY, NOBODY)
        reason = "the run belongs to another user"
    else:
        run = ended_run(reachable)
        (runs / "train-2").symlink_to(run.path)
        reason = "the run directory is a link to elsewhere"
    (found,) = candidates(runs)
    assert found.kept_because == reason
    assert (run.checkpoints_folder / "step-1" / "model.pt").exists()


def test_links_within_checkpoints_go_and_what_they_lead_to_stays(runs, reachable):
    run, kept = ended_run(runs), reachable / "thesis.pt"
    kept.write_text("precious")
    (run.checkpoints_folder / "best").symlink_to(reachable)
    (found,) = candidates(runs)
    assert remove(found) is None
    assert os.listdir(run.checkpoints_folder) == []
    assert kept.read_text() == "precious"


@pytest.mark.parametrize("which", ["checkpoints", "run", "code"])
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "while it is asked"])
def test_what_is_exchanged_for_a_link_is_not_removed_elsewhere(runs, reachable, which, is_before):
    (reachable / "other").mkdir()
    made = []
    for folder in (runs, reachable / "other"):
        run = ended_run(folder)
        (run.path / "code").mkdir()
        (run.path / "code/train.py").write_text("precious")
        used = UsedSnapshot(folder=str(run.path / "code"))
        run.write_spec(RunSpec(id=run.id, created_s=1.0, snapshot=used))
        made.append(run)
    own, other = made
    found = [] if is_before else candidates(runs)
    place = "" if which == "run" else which
    (own.path / place).rename(runs / "away")
    (own.path / place).symlink_to(other.path / place)
    for one in found or candidates(runs):
        assert one.name != own.id or which == "code" or one.kept_because or remove(one)
    assert (other.path / "code/train.py").read_text() == "precious"
    assert (other.checkpoints_folder / "step-1" / "model.pt").read_text() == "trained"
