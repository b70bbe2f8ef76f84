"""The time limit. Slurm looks at limits every 30 s, so all of this takes most of a minute."""

import pytest
from cluster_user import TWO, job_id, log
from counting import COUNT, await_counting

DEAF = """\
import signal, time
for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
print("up", flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.timeout(240)
def test_a_job_goes_on_after_its_time_limit_and_a_script_that_does_not_stop_ends_at_it_and_says_so(
    user,
):
    """At one time, since all of it is waiting: Slurm looks at limits every 30 s, on a busy machine
    some seconds later. It counts limits in minutes, so the ends are brought forward, to where one
    such look comes before them: it warns of them, as of a limit that nobody has changed."""
    counts = user.submit(user.write("count.py", COUNT), *TWO, "--time", "10")
    deaf = user.submit(user.write("deaf.py", DEAF), *TWO, "--time", "10")
    await_counting(user, counts)
    user.wait_for_line(deaf, "up")
    for run, left_s in ((counts, 100), (deaf, 45)):
        user.cluster.run("scontrol", "update", f"JobId={job_id(run)}", f"EndTime=now+{left_s}")
    user.cluster.wait_for(lambda: counts.newest_attempt() == 1, 120)
    user.write("gate", "")
    user.done(counts)
    assert_went_on(counts)
    user.verdict(deaf, 120)
    assert user.cluster.wait_for_end(job_id(deaf)) == "TIMEOUT"
    verdict = deaf.read_verdict()
    found = (verdict.kind, verdict.state, verdict.exit_code_of_run)
    assert found == ("time_limit", "failed", 1), verdict.message
    assert verdict.message.startswith("the time limit was reached: ended by SIGTERM")
    assert deaf.newest_attempt() == 0


def assert_went_on(run):
    first = run.read_attempt_verdict(0)
    assert (first.kind, first.exit_code_of_run) == ("time_limit", 75)
    stopped = [int((run.path / f"saved-{rank}").read_text()) for rank in range(2)]
    assert stopped[0] == stopped[1]
    for rank in range(2):
        assert f"stopped {stopped[0]}" in log(run, rank)
        assert f"counted from {stopped[0]}" in log(run, rank)
