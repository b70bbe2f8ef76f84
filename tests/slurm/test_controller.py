"""A scheduler that is down, slow or forgetful: nothing is half made, and nothing is lost."""

import json
from contextlib import contextmanager

from cluster_user import CPU, job_id

from hpcdist.runs.run import all_runs

STAY = """\
import os, sys, time
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@contextmanager
def stopped_controller(slurm):
    """While open, it is down; what is waited for in vain is not waited for long."""
    with slurm.impatient_commands():
        slurm.order("stop_controller")
        try:
            yield
        finally:
            slurm.order("start_controller")


def runs_in(folder):
    return [path.name for path in (folder / "runs").iterdir() if path.name[0] != "."]


def test_a_submission_without_an_answer_is_kept_and_goes_on_if_slurm_has_it(user):
    go = user.folder / "go"
    with user.cluster.impatient_commands(), user.cluster.silent_controller():
        done = user("submit", user.write("stay.py", STAY), "--", go)
    assert done.returncode == 3
    said, (run,) = done.stderr, all_runs(user.folder / "runs")
    assert "Socket timed out" in said
    assert f"it is not known whether {run.id} was submitted" in said
    assert f"hpcdist status {run.id} will tell, hpcdist cancel {run.id} ends it" in said
    user.cluster.wait_for(lambda: user.status(run)["state"] == "running")
    go.touch()
    assert user.verdict(run).state == "done"


def test_runs_and_who_waits_for_them_outlive_a_restart_of_the_controller_and_lost_accounting(user):
    """Meanwhile a submission leaves nothing, and a cancel is heard by the agents."""
    go, script = user.folder / "go", user.write("stay.py", STAY)
    waiting = user.start("submit", script, "--wait", "--", go)
    user.cluster.wait_for(lambda: list(user.folder.glob("runs/*/logs/rank-00000.log")))
    (run,) = user.runs()
    other = user.submit(script, "--", go)
    user.wait_for_line(other, "up")
    # scancel itself asks a controller that is down for minutes.
    scancel = user.cluster.replacing("scancel", 'echo "scancel: error: no" >&2; exit 1')
    with stopped_controller(user.cluster), scancel:
        verbs = ("submit", script), ("status", run.id), ("cancel", other.id)
        commands = [user.start(*words) for words in (*verbs, ("doctor", "--json", *CPU))]
        (_, refused), (shown, notes), (_, told), (found, _) = [
            command.communicate(timeout=150) for command in commands
        ]
        user.cluster.wait_for(other.read_verdict)
        assert waiting.poll() is None
    assert [command.returncode for command in commands] == [3, 0, 3, 1]
    assert "error: sbatch" in refused
    assert sorted(runs_in(user.folder)) == sorted([run.id, other.id])
    assert f"{run.id}: unknown" in shown
    assert "note: the state of 1 run is not known" in notes
    assert "what runs is ended by its own agents; whether anything is left" in told
    assert other.read_verdict().state == "cancelled"
    assert [one["name"] for one in json.loads(found) if one["state"] == "FAIL"] == ["controller"]
    user.cluster.wait_for(lambda: user.status(run)["state"] == "running")
    user.cluster.wait_for(lambda: user.cluster.queue() == [job_id(run)])

    with user.cluster.replacing("sacct", 'echo "sacct: error: it does not work" >&2; exit 1'):
        assert user.status(run)["state"] == "running"
        go.touch()
        waiting.communicate(timeout=150)
        assert waiting.returncode == 0
        user.done(run)
        assert user.status(run)["state"] == "done"
        done = user("summary", run.id)
        assert done.returncode == 0, done.stderr
        assert "the other accounting of slurm are not known" in " ".join(done.stderr.split())


def test_what_slurm_does_not_know_is_told_in_its_own_words(user):
    done = user("submit", user.write("stay.py", STAY), "--qos", "no-such-thing")
    assert done.returncode == 3
    assert "Invalid" in done.stderr
    assert "Batch job submission failed" in done.stderr
    assert not runs_in(user.folder)
