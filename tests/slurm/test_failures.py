"""What fails on a cluster, and what the verdict says of it."""

import pytest
from cluster_user import CPU, TWO, User, job_id
from counting import await_counting, count
from interruptions import kill_script, kill_srun


def test_a_job_that_ends_before_its_ranks_shows_its_own_log(user):
    user.write("hpcdist.yaml", "clusters: {c: {python: /no/such/python}}")
    run = user.submit("check", *CPU)
    followed = user("logs", "-f", run.id)
    said = followed.stdout + followed.stderr
    assert "/no/such/python: No such file or directory" in said
    assert "failed: the job ended before hpcdist started in it" in said
    shown = user("status", run.id).stdout
    assert f"slurm job {job_id(run)}" in shown
    assert f"submitit/{job_id(run)}_0_log.out" in shown


@pytest.mark.timeout(240)
def test_a_run_whose_script_or_srun_is_killed_goes_on_and_says_why(user):
    run = count(user)
    killed = {
        kill_script: ("preempted", "the job's script was killed: "),
        kill_srun: ("agent_lost", "srun, which had started the agents, or its tasks were killed"),
    }
    for attempt, (kill, (kind, words)) in enumerate(killed.items()):
        kill(user, run)
        await_counting(user, run, attempt + 1)
        verdict = run.read_attempt_verdict(attempt)
        assert (verdict.kind, verdict.message[: len(words)]) == (kind, words)
    user.write("gate", "")
    user.done(run)


def test_a_node_that_cannot_write_the_runs_folder_ends_the_run_at_srun_s_words(
    slurm_netns, tmp_path
):
    """srun itself goes on waiting for the others, and they for that node."""
    user, runs = User(slurm_netns, tmp_path), tmp_path / "runs"
    runs.mkdir()
    slurm_netns.run("mount", "--bind", "--options=ro", runs, runs, node="n2")
    run = user.submit(user.write("work.py", "import time\ntime.sleep(600)\n"), *CPU, *TWO)
    verdict = user.verdict(run)
    assert slurm_netns.wait_for_end(job_id(run)) == "FAILED"
    slurm_netns.run("umount", runs, node="n2")
    assert (verdict.kind, verdict.node, verdict.host) == ("launch", 1, "n2"), verdict.message
    assert "Slurmd could not connect IO" in verdict.message
    assert str(run.path) in verdict.message
