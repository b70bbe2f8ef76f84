"""All runs that are watched: which are shown, and how they end, and one frame of them."""

from __future__ import annotations

import pytest
from waiting import wait_for

from hpcdist.base import files
from hpcdist.monitor.progress import Progress, RanksSeen
from hpcdist.monitor.states import end_verdict
from hpcdist.monitor.watch import Board, RunView
from hpcdist.runs.run import all_runs
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.base import Condition

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
    assert (view.state, view.details) == ("failed", ["rank 0 left with 3"])
    assert view.ranks.progress.step == 20  # what it had come to
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
    wait_for(lambda: board.look() and board.is_over)
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


def ranks(step=120, *, alive=4):
    progress = Progress(
        attempt=0, epoch=2, step=step, total_steps=400, samples_per_s=3412.3, remaining_s=62.4
    )
    return RanksSeen(progress=progress, num_alive=alive, world_size=4, is_at_work=True, troubles=[])


VIEWS = [
    RunView(run="ddp-a", state="done", ranks=ranks(400, alive=0)),
    RunView(run="ddp-b", state="pending", details=["it waits for nodes (Resources)"]),
    RunView(run="ddp-cc", state="running", ranks=ranks(), details=["rank 3\nis \x1b[31mslow"]),
    RunView(run="ddp-d", state="failed", details=["rank 1 was killed by SIGKILL"]),
]

EXPECTED = """\
1 running, 1 failed, 1 pending, 1 done  12:00:00 all

RUN          STATE      STEP EPOCH SAMPLES/S RANKS LEFT
ddp-cc       running 120/400     3     3,412   4/4 1:02
ddp-d        failed
ddp-b        pending
ddp-a        done    400/400     3     3,412
ddp-cc: rank 3 is \\x1b[31mslow
ddp-d: rank 1 was killed by SIGKILL
ddp-b: it waits for nodes (Resources)
""".splitlines()


def test_what_goes_on_and_what_went_wrong_comes_first(drawn):
    assert drawn(VIEWS, title="12:00:00 all") == EXPECTED


def test_a_small_screen_counts_the_runs_that_it_has_no_room_for(drawn):
    lines = drawn(VIEWS, title="12:00:00 all", height=7)
    assert lines[:4] == EXPECTED[:4]
    assert lines[4:6] == ["... and 3 more", EXPECTED[7]]
    assert drawn(VIEWS, title="12:00:00 all", height=15) == EXPECTED


def test_a_scheduler_that_does_not_answer_is_told_in_the_frame(drawn):
    notes = ["the state of 1 run is not known: slurm"]
    assert drawn([], title="all", notes=notes) == ["no runs  all", f"note: {notes[0]}"]


def test_a_narrow_terminal_keeps_the_figures_and_whole_names(drawn):
    ids = [f"ddp-20260101-120000-{end}" for end in ("aaaa", "bbbb")]
    views = [RunView(run=run, state="running", ranks=ranks()) for run in ids]
    lines = drawn(views, title="now", width=60)
    assert max(map(len, lines)) <= 60
    assert lines[2].split() == ["RUN", "STATE", "STEP", "EPOCH", "SAMPLES/S", "RANKS", "LEFT"]
    assert len([line for line in lines if "1:02" in line]) == 2
    names = "".join(line.split()[0] for line in lines[3:])
    assert names == "".join(ids)


def test_what_is_said_of_a_run_is_cut_short(drawn):
    views = [RunView(run="ddp-a", state="failed", details=["word " * 100])]
    lines = drawn(views, title="now", width=100)
    assert len(lines) == 4 + 3
    assert lines[-1].endswith("…")


@pytest.mark.parametrize("is_element", [False, True], ids=["job", "element of an array"])
def test_a_run_whose_setup_failed_before_it_began_says_which_line(going, tmp_path, is_element):
    run = going(world_size=1).run
    folder = tmp_path / "sweep" if is_element else run.path
    files.write_json(
        run.submission_file, {"scheduler": "slurm", "job_id": "7_1", "folder": str(folder)}
    )
    (folder / "submitit").mkdir(parents=True, exist_ok=True)
    said = "hpcdist: setup: exit code 1: module load cuda/99\npython: not found\n"
    (folder / "submitit" / "7_1_0_log.out").write_text(said)
    verdict = end_verdict(run, Condition(state="failed", reason="Slurm says FAILED"))
    assert verdict.exit_code_of_run == 1
    assert verdict.message == (
        "the job ended before hpcdist started in it: a line of the profile's setup failed "
        "(exit code 1: module load cuda/99): Slurm says FAILED"
    )
