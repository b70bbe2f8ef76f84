"""All runs that are watched: which are shown, and how they end."""

import time

import pytest

from hpcdist.base import files
from hpcdist.monitor.watch.board import Board
from hpcdist.runs.run import all_runs
from hpcdist.runs.verdict import Verdict

LIMIT_S = 90.0
DONE = Verdict(kind="done", state="done", message="every rank ended well", exit_code_of_run=0)
FAILED = Verdict(kind="exit", state="failed", message="rank 0 left with 3", exit_code_of_run=1)


def submitted(made, scheduler="local"):
    files.write_json(made.run.submission_file, {"scheduler": scheduler, "job_id": "1"})
    return made


def states(views):
    return {view.run: view.state for view in views}


def test_runs_end_with_their_verdicts_and_the_board_with_them(going):
    one, two = (submitted(going(name, world_size=1)) for name in ("one", "two"))
    one.start(0)
    one.window(0, 10)
    board = Board([one.run, two.run])
    board.look()
    assert not board.is_over
    one.run.write_verdict(FAILED)
    (view, _) = board.look()
    assert (view.state, view.details) == ("failed", ["rank 0 left with 3"])
    assert view.ranks.progress.step == 10  # what it had come to
    assert not board.is_over
    two.run.write_verdict(DONE)
    assert states(board.look()) == {"one": "failed", "two": "done"}
    assert board.is_over
    assert board.verdicts["one"].exit_code_of_run == 1


def test_a_run_that_began_after_the_scheduler_was_asked_is_running(going):
    made = going(world_size=1)
    board = Board([made.run], folder=made.run.path.parent)
    later = submitted(going("later", world_size=1))
    assert states(board.look())["later"] == "pending"
    later.start(0)
    assert states(board.look())["later"] == "running"


def test_of_a_folder_what_goes_on_and_the_last_that_ended_are_shown(going, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # so nobody says that the run has ended
    for number in range(8):
        going(f"ended-{number}").run.write_verdict(DONE)
    folder = submitted(going("going-on"), "slurm").run.path.parent
    board = Board(all_runs(folder), folder=folder)
    shown = states(board.look())
    assert len(shown) == 6
    assert "going-on" in shown
    assert not board.is_over


def test_a_run_that_its_scheduler_knows_nothing_of_is_lost(going):
    made = submitted(going())
    board = Board([made.run])
    deadline_s = time.monotonic() + LIMIT_S
    while not board.is_over:
        board.look()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    (view,) = board.look()
    assert view.state == "lost"
    assert view.details == ["the job ended before hpcdist started in it: its log has the reason"]


@pytest.mark.parametrize("scheduler", ["slurm", "lsf"])
def test_a_scheduler_that_does_not_answer_is_told_and_ends_nothing(
    going, scheduler, monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    made = submitted(going(world_size=1), scheduler)
    board = Board([made.run])
    (view,) = board.look()
    assert view.state == "unknown"
    (told,) = board.unanswered
    assert "the state of 1 run is not known" in told
    assert not board.is_over
