"""The time limit. Slurm looks at limits every 30 s, so all of this takes most of a minute."""

import re

import pytest
from cluster_user import TWO, User, job_id, log
from counting import COUNT, await_counting


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


DEAF = """\
import signal, time
for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
print("up", flush=True)
while True:
    time.sleep(1)
"""
SAVES = """\
import os, time
from pathlib import Path
from hpcdist import record
saved = Path(os.environ["HPCDIST_RUN_DIR"], "model.pt")
step = int(saved.read_text()) if saved.exists() else 0
print("up", step, flush=True)
record.start(first_step=step)
while not Path("second gate").exists():
    time.sleep(0.02)
    record.step(samples=1)
    step += 1
    saved.with_suffix(".new").write_text(str(step))
    saved.with_suffix(".new").rename(saved)
"""
SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


@pytest.mark.timeout(240)
def test_a_job_goes_on_after_its_time_limit_and_scripts_that_do_not_stop_end_at_it_and_say_so(user):
    """At one time, since all of it is waiting: Slurm looks at limits every 30 s, on a busy machine
    some seconds later. It counts limits in minutes, so the ends are brought forward, to where one
    such look comes before them: it warns of them, as of a limit that nobody has changed."""
    counts = user.submit(user.write("count.py", COUNT), *TWO, "--time", "10")
    do_not_stop = [
        user.submit(user.write(name, text), *options, "--time", "10")
        for name, text, options in (("deaf.py", DEAF, TWO), ("sleep.py", SLEEP, ()))
    ]
    await_counting(user, counts)
    saves = user.submit(user.write("saves.py", SAVES), "--time", "10")
    for run in (*do_not_stop, saves):
        user.wait_for_line(run, "up")
    for run, left_s in ((counts, 100), *((run, 45) for run in (*do_not_stop, saves))):
        user.cluster.run("scontrol", "update", f"JobId={job_id(run)}", f"EndTime=now+{left_s}")
    user.cluster.wait_for(lambda: counts.newest_attempt() == 1, 120)
    user.write("gate", "")
    user.done(counts)
    assert_went_on(counts)
    user.cluster.wait_for(lambda: log(saves).count("up") == 2, 120)
    user.write("second gate", "")
    user.done(saves)
    assert saves.read_attempt_verdict(0).kind == "time_limit"
    assert re.fullmatch(r"up 0\nup [1-9]\d*\n", log(saves))
    for run in do_not_stop:
        user.verdict(run, 120)
        assert user.cluster.wait_for_end(job_id(run)) == "TIMEOUT"
        assert_ended_at_the_limit(run)


def assert_went_on(run):
    first = run.read_attempt_verdict(0)
    assert (first.kind, first.exit_code_of_run) == ("time_limit", 75)
    stopped = [int((run.path / f"saved-{rank}").read_text()) for rank in range(2)]
    assert stopped[0] == stopped[1]
    for rank in range(2):
        assert f"stopped {stopped[0]}" in log(run, rank)
        assert f"counted from {stopped[0]}" in log(run, rank)


def assert_ended_at_the_limit(run):
    verdict = run.read_verdict()
    found = (verdict.kind, verdict.state, verdict.exit_code_of_run)
    assert found == ("time_limit", "failed", 1), verdict.message
    assert verdict.message.startswith("the time limit was reached: ended by SIGTERM")
    assert run.newest_attempt() == 0
