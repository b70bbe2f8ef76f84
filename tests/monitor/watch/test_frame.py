"""One frame of the view, whole."""

from hpcdist.monitor.follow.live import Progress
from hpcdist.monitor.watch.board import RunView
from hpcdist.monitor.watch.frame import make_frame, plain
from hpcdist.monitor.watch.running import RanksSeen


def ranks(step=120, *, alive=4, troubles=()):
    progress = Progress(
        attempt=0, epoch=2, step=step, total_steps=400, samples_per_s=3412.3, remaining_s=62.4
    )
    return RanksSeen(
        progress=progress, num_alive=alive, world_size=4, quiet_s=0.0, troubles=list(troubles)
    )


VIEWS = [
    RunView(run="ddp-a", state="done", ranks=ranks(400, alive=0)),
    RunView(run="ddp-b", state="pending", details=["it waits for nodes (Resources)"]),
    RunView(run="ddp-cc", state="running", ranks=ranks(), details=["rank 3\nis \x1b[31mslow"]),
    RunView(run="ddp-d", state="failed", details=["rank 1 was killed by SIGKILL"]),
]

EXPECTED = """\
1 running, 1 failed, 1 pending, 1 done  12:00:00 all

RUN     STATE       STEP  EPOCH  SAMPLES/S  RANKS  LEFT
ddp-cc  running  120/400      3      3,412    4/4  1:02
  rank 3 is \\x1b[31mslow
ddp-d   failed
  rank 1 was killed by SIGKILL
ddp-b   pending
  it waits for nodes (Resources)
ddp-a   done     400/400      3      3,412
"""


def test_what_goes_on_and_what_went_wrong_comes_first():
    assert plain(make_frame(VIEWS, title="12:00:00 all")) == EXPECTED


def test_a_small_screen_counts_the_runs_that_it_has_no_room_for():
    shown = plain(make_frame(VIEWS, title="12:00:00 all", height=7)).splitlines()
    assert shown[:5] == EXPECTED.splitlines()[:5]
    assert shown[5:] == ["... and 3 more"]
    for height in range(4, 12):
        assert len(make_frame(VIEWS, title="all", height=height)) <= height
    assert plain(make_frame(VIEWS, title="12:00:00 all", height=10)) == EXPECTED


def test_a_scheduler_that_does_not_answer_is_told():
    shown = plain(make_frame([], title="all", notes=["the state of 1 run is not known: slurm"]))
    assert shown == "no runs  all\nnote: the state of 1 run is not known: slurm\n"


NARROW = 60


def test_a_narrow_terminal_keeps_the_figures_and_the_ends_of_names():
    told = f"rank 1 is slow: {'so ' * 40}".strip()
    ids = [f"ddp-20260101-120000-{end}" for end in ("aaaa", "bbbb")]
    views = [RunView(run=run, state="running", ranks=ranks(), details=[told]) for run in ids]
    lines = plain(make_frame(views, title="now", width=NARROW)).splitlines()
    assert max(map(len, lines)) <= NARROW
    assert lines[2].split() == ["RUN", "STATE", "STEP", "SAMPLES/S", "RANKS", "LEFT"]
    assert [line.split("  ")[0][-6:] for line in lines if "1:02" in line] == ["…-aaaa", "…-bbbb"]
    details = " ".join(line.strip() for line in lines if line.startswith("  "))
    assert details == f"{told} {told}"
    assert ids[0] in plain(make_frame(views, title="now"))


def test_what_is_said_takes_three_lines_at_most():
    views = [RunView(run="ddp-a", state="failed", details=["word " * 100])]
    lines = plain(make_frame(views, title="now", width=NARROW)).splitlines()
    assert len(lines) == 4 + 3
    assert lines[-1].endswith("…")
