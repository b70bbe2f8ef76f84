"""Ranks that handle the signal by which they are ended have time to save; others have none."""

import os
import signal

import pytest

SAVES = """
import os, signal, sys, time

go, seconds = sys.argv[1], float(sys.argv[2])
how = sys.argv[3 + int(os.environ["RANK"])]

def save(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    time.sleep(seconds)
    print("saved", flush=True)
    sys.exit(3)

if how.startswith("SIG"):
    signal.signal(getattr(signal, how), save)
print("up", flush=True)
try:
    while how != "fails" or not os.path.exists(go):
        time.sleep(0.01)
    raise OSError("first")
except KeyboardInterrupt:
    print("got KeyboardInterrupt", flush=True)
    time.sleep(seconds)
    print("saved", flush=True)
finally:
    print("finally", flush=True)
"""


@pytest.fixture
def start(launch, write_script, up, tmp_path):
    def start(*ways, seconds=0.4, nodes=1, **options):
        launched = launch(
            write_script(SAVES),
            *(tmp_path / "go", seconds, *ways),
            nodes=nodes,
            gpus=len(ways) // nodes,
            **options,
        )
        up(launched, len(ways))
        (tmp_path / "go").touch()
        return launched

    return start


def said(launched, rank):
    return launched.log(rank).splitlines()[1:]


def test_a_rank_that_handles_sigterm_saves_after_another_has_failed_and_others_end_at_once(start):
    launched = start("fails", "SIGTERM", "nothing", "SIGTERM", nodes=2, grace_s=600)
    verdict = launched.verdict()
    assert (verdict.first.rank, verdict.victims) == (0, [1, 2, 3])
    assert verdict.message.endswith("ranks 1, 2 and 3 ended because of it")
    assert [said(launched, rank) for rank in (1, 3)] == [["got SIGTERM", "saved", "finally"]] * 2
    assert said(launched, 2) == []
    assert launched.events(2)[-1]["signal"] == "SIGTERM"


def test_the_verdict_names_the_ranks_that_took_longer_than_the_grace(start):
    launched = start("fails", "SIGTERM", "nothing", seconds=600, grace_s=0.5)
    verdict = launched.verdict()
    assert verdict.message.endswith(
        "ranks 1 and 2 ended because of it; rank 1 had not ended 0.5 s after SIGTERM, and had to "
        "be killed"
    )
    assert said(launched, 1) == ["got SIGTERM"]


def test_ranks_get_the_signal_that_ends_the_run(start):
    launched = start("nothing", "SIGINT", nodes=2)
    os.kill(launched.agent_pid(1), signal.SIGINT)
    verdict = launched.verdict()
    assert (verdict.state, verdict.message) == ("cancelled", "cancelled (SIGINT)")
    for rank, name in enumerate(("KeyboardInterrupt", "SIGINT")):
        assert said(launched, rank) == [f"got {name}", "saved", "finally"]


def test_ranks_whose_leader_is_lost_have_time_to_save(start):
    launched = start("nothing", "SIGTERM", nodes=2)
    os.kill(launched.agent_pid(0), signal.SIGKILL)
    launched.wait(lambda: not launched.agents_alive())
    assert said(launched, 1) == ["got SIGTERM", "saved", "finally"]
