"""All runs that are watched: which are shown, and how they end, and one frame of them."""

from __future__ import annotations

import io

from rich.console import Console

from hpcdist.base import files
from hpcdist.monitor.watch import Board, RunView, make_frame
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


def test_what_goes_on_and_what_went_wrong_comes_first():
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(make_frame(VIEWS, title="12:00:00 all"))
    # Releases of rich share out the widths of columns differently.
    shown = [line.split() for line in console.file.getvalue().splitlines()]
    assert shown == [line.split() for line in EXPECTED]
