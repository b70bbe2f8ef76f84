"""A scheduler that is down, slow or forgetful: nothing is half made, and nothing is lost."""

import json
import sys

import pytest
from user import User, job_id

STAY = """\
import os, sys, time
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


@pytest.fixture
def staying(user):
    """A run that goes on until the file `go` is there."""
    go = user.folder / "go"
    run = user.submit(user.write("stay.py", STAY), "--", go)
    user.wait_for_line(run, "up")
    yield run
    go.touch()


def state(user, run, **options):
    (status,) = json.loads(user("status", run.id, "--json", **options).stdout)
    return status["state"]


def test_a_submission_while_the_controller_is_down_leaves_nothing(user):
    script = user.write("stay.py", STAY)
    user.cluster.stop_controller()
    try:
        done = user("submit", script)
    finally:
        user.cluster.start_controller()
    assert done.returncode == 3
    assert "error: sbatch" in done.stderr
    assert not [path for path in (user.folder / "runs").iterdir() if path.name[0] != "."]
    assert user.cluster.queue() == []


def test_a_run_outlives_a_restart_of_the_controller_which_is_told(user, staying):
    user.cluster.stop_controller()
    try:
        done = user("status", staying.id)
        assert done.returncode == 0
        assert f"{staying.id}: unknown" in done.stdout
        assert "note: the state of 1 run is not known" in done.stderr
        assert user("cancel", staying.id).returncode == 3
    finally:
        user.cluster.start_controller()
    assert not staying.cancel_file.exists()
    user.cluster.wait_for(lambda: state(user, staying) == "running")
    (user.folder / "go").touch()
    user.done(staying)


def test_waiting_goes_on_over_a_restart_of_the_controller(user):
    go = user.folder / "go"
    waiting = user.start("submit", user.write("stay.py", STAY), "--wait", "--", go)
    user.cluster.wait_for(lambda: list(user.folder.glob("runs/*/logs/rank-00000.log")))
    user.cluster.stop_controller()
    try:
        assert waiting.poll() is None
    finally:
        user.cluster.start_controller()
    go.touch()
    assert waiting.wait(60) == 0
    waiting.communicate()
    user.cluster.wait_until_idle()


def test_without_accounting_the_run_directory_and_squeue_are_enough(user, staying):
    with user.cluster.failing("sacct"):
        assert state(user, staying) == "running"
        (user.folder / "go").touch()
        user.done(staying)
        assert state(user, staying) == "done"
        done = user("summary", staying.id)
        assert done.returncode == 0, done.stderr


def test_accounting_tells_of_one_run_among_more_than_a_command_line_holds(user):
    go = user.folder / "go"
    go.touch()
    run = user.done(user.submit(user.write("stay.py", STAY), "--", go))
    asked = f"""
from hpcdist.schedulers.slurm.queue import ask_accounting
ids = ["{job_id(run)}", *map(str, range(10**6, 10**6 + 20_000))]
for job in ask_accounting(ids, since_s={run.read_submission()["submitted_s"]}):
    print(job.job_id, job.name, job.state)
"""
    line = f"{job_id(run)} {run.id} COMPLETED"
    user.cluster.wait_for(
        lambda: line in user.cluster.run(sys.executable, "-c", asked).stdout.splitlines()
    )


def test_an_id_that_another_job_has_now_is_not_taken_for_the_run(user, staying):
    submission = json.loads(staying.submission_file.read_text())
    staying.submission_file.write_text(json.dumps(submission | {"job_name": "of-before"}))
    assert state(user, staying) == "lost"
    staying.submission_file.write_text(json.dumps(submission))
    assert state(user, staying) == "running"


def test_a_submission_that_was_killed_before_it_knew_the_id_is_found_by_its_name(user, staying):
    staying.submission_file.unlink()
    assert state(user, staying) == "running"
    assert user("cancel", staying.id).returncode == 0
    assert user.cluster.queue() == []
    assert staying.read_verdict().state == "cancelled"


def test_where_sbatch_is_missing_it_is_said(user):
    with user.cluster.without("sbatch"):
        done = user("submit", user.write("stay.py", STAY), "--scheduler", "slurm")
    assert done.returncode == 3
    assert "sbatch was not found" in done.stderr
    assert "hint:" in done.stderr


@pytest.mark.parametrize("flag", ["--partition", "--account", "--qos"])
def test_what_slurm_does_not_know_is_told_in_its_own_words(user, flag):
    done = user("submit", user.write("stay.py", STAY), flag, "no-such-thing")
    assert done.returncode == 3
    assert "Invalid" in done.stderr
    assert "Batch job submission failed" in done.stderr
    assert not [path for path in (user.folder / "runs").iterdir() if path.name[0] != "."]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--nodes", 9), "partition main has 4"),
        (("--gpus", 3), "the most is 2 per node"),
        (("--partition", "short", "--time", 6), "allows 5 minutes"),
        (("--cluster", "nowhere"), "nowhere"),
    ],
)
def test_what_the_partition_can_never_give_is_found_before_submitting(user, options, part):
    done = user("submit", user.write("stay.py", STAY), *options)
    assert done.returncode == 2
    assert part in done.stderr
    assert not (user.folder / "runs").exists()


def test_detect_writes_a_profile_that_jobs_can_go_by(user):
    assert user("cluster", "detect", "--write", "--name", "lab").returncode == 0
    shown = json.loads(user("cluster", "show", "--json").stdout)
    assert shown["name"] == "lab"
    go = user.folder / "go"
    go.touch()
    run = user.done(user.submit(user.write("stay.py", STAY), "--", go))
    assert run.read_spec()["cluster"]["name"] == "lab"
    assert user.cluster.job_state(job_id(run)) == "COMPLETED"
