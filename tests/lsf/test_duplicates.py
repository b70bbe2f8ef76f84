"""A bsub that asks again while the master hangs: several jobs of one name and one script."""

from cluster_user import job_id, log
from counting import COUNT
from trainings import CPU, TWO


def of_run(user, run):
    return [job for job in user.cluster.jobs() if job.name == run.id]


def test_one_of_the_jobs_adopts_the_run_and_the_others_end_at_once_and_say_so(user):
    user.write("gate", "")
    with user.cluster.resending(3):
        run = user.submit(user.write("count.py", COUNT), *CPU, *TWO)
    for job in of_run(user, run):
        assert user.cluster.wait_for_end(job.id) == "DONE"
    user.done(run)
    assert run.newest_attempt() == 0
    assert log(run).count("counted from") == 1
    owner = job_id(run)
    others = [job.id for job in of_run(user, run) if job.id != owner]
    assert len(others) == 3
    for other in others:
        said = (run.submitit_folder / f"{other}_0_log.out").read_text()
        assert f"job {owner} has the run" in said
    assert user.status(run)["job_id"] == owner


def test_cancel_ends_all_jobs_of_the_run(user):
    site = user.cluster
    blocker = site.submit("sleep 600", "-n", "16")
    site.wait_for_state(blocker, "RUN")
    with site.resending(3):
        run = user.submit(user.write("count.py", COUNT), *CPU, *TWO)
    assert {job.state for job in of_run(user, run)} == {"PEND"}
    assert user("cancel", run.id).returncode == 0
    assert [job.state for job in of_run(user, run)] == ["EXIT"] * 4
    site.run("bkill", blocker)
    site.wait_for_end(blocker)
