"""The time limit. Slurm looks at limits every 30 s, so this takes most of a minute."""

import pytest
from cluster_user import job_id
from counting import count, end_counting


@pytest.mark.timeout(240)
def test_a_job_that_slurm_warns_of_its_time_limit_stops_and_goes_on_in_another_life(user):
    """Slurm counts limits in minutes, so the end is brought forward, to where one look comes before
    it: Slurm warns of it, as of a limit that nobody has changed."""
    run = count(user, "--time", "10")
    user.cluster.run("scontrol", "update", f"JobId={job_id(run)}", "EndTime=now+100")
    user.cluster.wait_for(lambda: run.newest_attempt() == 1, 120)
    end_counting(user, run)
    first = run.read_attempt_verdict(0)
    assert (first.kind, first.exit_code_of_run) == ("time_limit", 75)
