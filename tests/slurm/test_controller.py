"""A scheduler that is down, slow or forgetful: nothing is half made, and nothing is lost."""

import json

import pytest
from cluster_user import job_id

from hpcdist.runs.run import all_runs

STAY = """\
import os, sys, time
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.fixture
def impatient(user):
    """Where the controller is down: what is waited for in vain is not waited for long."""
    with user.cluster.impatient_commands():
        yield


def state(user, run, **options):
    (status,) = json.loads(user("status", run.id, "--json", **options).stdout)
    return status["state"]


@pytest.mark.usefixtures("impatient")
def test_a_submission_without_an_answer_is_kept_and_goes_on_if_slurm_has_it(user):
    go = user.folder / "go"
    with user.cluster.silent_controller():
        done = user("submit", user.write("stay.py", STAY), "--", go)
    assert done.returncode == 3
    said, (run,) = done.stderr, all_runs(user.folder / "runs")
    assert "Socket timed out" in said
    assert f"it is not known whether {run.id} was submitted" in said
    assert f"hpcdist status {run.id} will tell, hpcdist cancel {run.id} ends it" in said
    user.cluster.wait_for(lambda: state(user, run) == "running")
    go.touch()
    assert user.verdict(run).state == "done"
    user.cluster.wait_until_idle()


@pytest.mark.usefixtures("impatient")
def test_a_run_and_who_waits_for_it_outlive_a_restart_of_the_controller_and_lost_accounting(user):
    go, script = user.folder / "go", user.write("stay.py", STAY)
    waiting = user.start("submit", script, "--wait", "--", go)
    user.cluster.wait_for(lambda: list(user.folder.glob("runs/*/logs/rank-00000.log")))
    (run,) = user.runs()
    user.cluster.stop_controller()
    try:
        refused, described = [
            user.start(*words) for words in (("submit", script), ("status", run.id))
        ]
        _, said = refused.communicate(timeout=150)
        shown, notes = described.communicate(timeout=150)
        assert waiting.poll() is None
    finally:
        user.cluster.start_controller()
    assert refused.returncode == 3
    assert "error: sbatch" in said
    left = [path.name for path in (user.folder / "runs").iterdir() if path.name[0] != "."]
    assert left == [run.id]
    assert described.returncode == 0
    assert f"{run.id}: unknown" in shown
    assert "note: the state of 1 run is not known" in notes
    user.cluster.wait_for(lambda: state(user, run) == "running")
    assert user.cluster.queue() == [job_id(run)]

    with user.cluster.failing("sacct"):
        assert state(user, run) == "running"
        go.touch()
        waiting.communicate(timeout=150)
        assert waiting.returncode == 0
        user.done(run)
        assert state(user, run) == "done"
        done = user("summary", run.id)
        assert done.returncode == 0, done.stderr
        assert "the other accounting of slurm are not known" in " ".join(done.stderr.split())


@pytest.mark.usefixtures("impatient")
def test_cancel_ends_a_run_by_its_agents_where_the_controller_is_down(user):
    run = user.submit(user.write("stay.py", STAY), "--", user.folder / "go")
    user.wait_for_line(run, "up")
    user.cluster.stop_controller()
    try:
        done = user("cancel", run.id)
        assert done.returncode == 3, done.stderr
        assert "what runs is ended by its own agents; whether anything is left" in done.stderr
        assert "scancel" in done.stderr
        user.cluster.wait_for(run.read_verdict)
    finally:
        user.cluster.start_controller()
    assert run.read_verdict().state == "cancelled"
    user.cluster.wait_until_idle()


def test_a_run_is_known_by_id_and_name_of_its_job_or_by_the_name_alone(user):
    run = user.submit(user.write("stay.py", STAY), "--", user.folder / "go")
    user.wait_for_line(run, "up")
    submission = json.loads(run.submission_file.read_text())
    run.submission_file.write_text(json.dumps(submission | {"job_name": "of-before"}))
    run.agent_file(0).unlink()
    assert state(user, run) == "unknown"  # and lost later: see tests/schedulers/test_jobs.py
    run.submission_file.write_text(json.dumps(submission))
    assert state(user, run) == "running"
    assert not run.missed_file.exists()

    run.submission_file.unlink()  # as of a submission that was killed before it knew the id
    assert state(user, run) == "running"
    assert user("cancel", run.id).returncode == 0
    assert user.cluster.queue() == []
    assert run.read_verdict().state == "cancelled"


def test_what_slurm_does_not_know_is_told_in_its_own_words(user):
    done = user("submit", user.write("stay.py", STAY), "--qos", "no-such-thing")
    assert done.returncode == 3
    assert "Invalid" in done.stderr
    assert "Batch job submission failed" in done.stderr
    assert not [path for path in (user.folder / "runs").iterdir() if path.name[0] != "."]
