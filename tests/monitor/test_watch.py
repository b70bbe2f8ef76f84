"""All runs that are watched: which are shown, and how they end, and one frame of them."""

from __future__ import annotations

import pytest
from waiting import wait_for

from hpcdist.base import files
from hpcdist.monitor.watch import Board, RunView
from hpcdist.runs.run import all_runs
from hpcdist.runs.verdict import Verdict

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
    one.window(0, 20)
    one.run.write_verdict(FAILED)
    (view, _) = board.look()
    assert view.state == "failed"
    assert view.texts == ["epoch 1, step 20/400", "rank 0 left with 3"]
    assert not board.is_over
    two.run.write_verdict(DONE)
    assert states(board.look()) == {"one": "failed", "two": "done"}
    assert board.is_over
    assert board.verdicts["one"].exit_code_of_run == 1


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


def test_a_run_that_its_scheduler_knows_nothing_of_is_lost(going, monkeypatch):
    monkeypatch.setattr("hpcdist.monitor.watch._INTERVAL_S", 0.01)
    made = submitted(going())
    board = Board([made.run])
    wait_for(lambda: board.look() and board.is_over)
    (view,) = board.look()
    assert view.state == "lost"
    assert view.texts == ["the job ended before hpcdist started in it: its log has the reason"]


@pytest.mark.parametrize("scheduler", ["slurm", "lsf"])
def test_a_scheduler_that_does_not_answer_is_told_and_ends_nothing(
    going, scheduler, monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    made = submitted(going(world_size=1), scheduler)
    board = Board([made.run])
    (view,) = board.look()
    assert view.state == "unknown"
    (told,) = board.ends.unanswered
    assert "the state of 1 run is not known" in told
    assert not board.is_over


AT = "epoch 3, step 120/400, 3,412 samples/s, 1:02 left"
VIEWS = [
    RunView(run="ddp-a", state="done", texts=["epoch 3, step 400/400"]),
    RunView(run="ddp-b", state="pending", texts=["it waits for nodes (Resources)"]),
    RunView(run="ddp-cc", state="running", texts=[AT, "rank 3\nis \x1b[31mslow"]),
    RunView(run="ddp-d", state="failed", texts=["rank 1 was killed by SIGKILL"]),
]

EXPECTED = """\
1 running, 1 failed, 1 pending, 1 done  12:00:00 all

RUN          STATE   PROGRESS
ddp-cc       running epoch 3, step 120/400, 3,412 samples/s, 1:02 left
                     rank 3 is \\x1b[31mslow
ddp-d        failed  rank 1 was killed by SIGKILL
ddp-b        pending it waits for nodes (Resources)
ddp-a        done    epoch 3, step 400/400
""".splitlines()


def test_what_goes_on_and_what_went_wrong_comes_first(drawn):
    assert drawn(VIEWS, title="12:00:00 all") == EXPECTED


def test_a_narrow_terminal_keeps_all_figures_and_whole_names(drawn):
    ids = [f"ddp-20260101-120000-{end}" for end in ("aaaa", "bbbb")]
    views = [RunView(run=run, state="running", texts=[AT]) for run in ids]
    lines = drawn(views, title="now", width=60)
    assert max(map(len, lines)) <= 60
    cells = [line.partition(" ")[::2] for line in lines[3:]]
    assert "".join(name for name, _ in cells) == "".join(ids)
    assert " ".join(" ".join(text.split()) for _, text in cells) == " ".join([f"running {AT}"] * 2)
