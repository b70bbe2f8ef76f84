"""An engine that knows less than IBM's, and an LSF that does not answer: what works then."""

import json
import os
import time

import pytest
from cluster_user import CPU, User, job_id, log
from counting import COUNT, count, end_counting
from lsf_cluster import STRICT

from hpcdist.runs.run import Sweep

SMALL_SITE = """
clusters:
  small:
    scheduler: lsf
    gpu_request: none
"""


def test_an_engine_that_knows_less_does_what_is_needed_and_is_sent_nothing_that_it_misreads(
    lsf_like, tmp_path
):
    user = User(lsf_like(engine=STRICT, kill_interval_s=60.0, limit_grace_s=60.0), tmp_path)
    site = user.cluster
    user.write("hpcdist.yaml", SMALL_SITE)
    user.write("count.py", COUNT)
    sweep = user("submit", "count.py", *CPU, "--sweep", "nodes=1 args=[a],[b]", "--time", "1:00:00")
    assert sweep.returncode == 0, sweep.stderr
    runs = Sweep(user.folder / "runs" / sweep.stdout.splitlines()[0]).runs()
    after = user.submit("count.py", *CPU, "--after", runs[0].id)
    run = count(user)

    states = {one["run"]: one for one in json.loads(user("status", "--json").stdout)}
    assert states[run.id]["state"] == "running"
    assert states[after.id]["state"] == "pending"
    assert user("cancel", runs[1].id).returncode == 0
    assert site.job_state(job_id(runs[1])) == "EXIT"
    site.reach_limit(job_id(run))
    end_counting(user, run)
    (summary,) = json.loads(user("summary", run.id, "--json").stdout)
    books = summary["accounting"]
    assert (books["job_id"], books["state"]) == (job_id(run), "DONE")
    assert (books["queue_wait_s"], books["max_rss_bytes"]) == (None, None)
    assert "pass  controller     LSF-compatible batch system 3.3 lists" in user("doctor").stdout
    user.done(runs[0])
    user.done(after)
    assert "counted from 0" in user("logs", after.id).stdout


def test_the_states_of_many_runs_are_one_question(user):
    user.write("count.py", COUNT)
    done = user("submit", "count.py", *CPU, "--sweep", "args=[a]", "--repeat", 2)
    assert done.returncode == 0, done.stderr
    other = user.submit("count.py", *CPU)
    before = user.cluster.calls().get("bjobs", 0)
    found = json.loads(user("status", "--json").stdout)
    assert user.cluster.calls()["bjobs"] == before + 1
    assert len(found) == 3
    user.write("gate", "")
    for run in user.runs():
        user.done(run)
    assert log(other) == "counted from 0\n"


IMPATIENT = """\
import sys
from hpcdist.schedulers import request, submitting
from hpcdist.schedulers.lsf import jobs
submitting._SUBMIT_TIMEOUT_S, jobs.TIMEOUT_S = map(float, sys.argv.pop(1).split(","))
request._ASK_TIMEOUT_S = jobs.TIMEOUT_S
from hpcdist.cli.main import main
sys.exit(main())
"""


@pytest.fixture
def impatient(user):
    """Calls the command with shorter time-outs, as no test can wait for the real ones: that of
    bsub, and that of other commands where they get no answer either."""
    user.write("impatient.py", IMPATIENT)

    def call(*arguments, of_bsub_s=1.0, of_others_s=1.0):
        python = user.cluster.run("which", "python").stdout.strip()
        words = (python, "impatient.py", f"{of_bsub_s},{of_others_s}", *arguments)
        return user.cluster.run(*words, cwd=user.folder, check=False)

    return call


def test_while_lsf_is_silent_nothing_is_claimed_and_a_cancelled_run_ends_by_itself(user, impatient):
    run = count(user)
    with user.cluster.silent():
        found = impatient("status", run.id)
        assert f"{run.id}: unknown" in found.stdout
        assert "did not answer" in found.stderr
        unclear = impatient("submit", "count.py", *CPU, "--scheduler", "lsf")
        assert unclear.returncode == 3, unclear.stderr
        assert "it is not known whether" in unclear.stderr
        cancelled = impatient("cancel", run.id)
        assert cancelled.returncode == 3, cancelled.stderr
        assert user.verdict(run).state == "cancelled"
    (kept,) = [path.name for path in (user.folder / "runs").iterdir() if path.name != run.id]
    user.cluster.wait_for_end(job_id(run))
    assert "it is being submitted" in user("status", kept).stdout  # the job may come yet
    assert user("cancel", kept).returncode == 0
    assert f"{kept}: cancelled" in user("status", kept).stdout


@pytest.mark.parametrize(
    ("said", "words", "hint"),
    [
        ("Please request memory: -R rusage[mem=...]", (), "--set resources.mem_gb=GB"),
        ("A run limit (-W) is required here", (), "how long it may run with --time"),
        ("The memory asked for is above 10GB", ("--set", "resources.mem_gb=64"), "lsf.mem_per"),
    ],
)
def test_what_a_site_demands_is_answered_with_the_option_that_says_it(user, said, words, hint):
    user.write("count.py", COUNT)
    with user.cluster.refusing("bsub", f"{said}. Request aborted by esub. Job not submitted."):
        refused = user("submit", "count.py", *CPU, *words, "--scheduler", "lsf")
    assert refused.returncode == 3
    assert said in refused.stderr
    assert hint in " ".join(refused.stderr.split())


def test_without_battach_attach_and_drill_say_so_and_cancel_needs_no_bjobs(user):
    run = count(user)
    drill = user("drill", "count.py", *CPU)
    assert drill.returncode == 2, drill.stderr
    assert "a drill disturbs its job from within; LSF cannot do that" in drill.stderr
    refused = user("attach", run.id, "--", "ps", "-x")
    assert refused.returncode == 3, refused.stderr
    assert "LSF has no command that enters a running job" in refused.stderr
    assert "ssh hostA -t" in refused.stderr
    with user.cluster.cut_off("bjobs"):
        assert "FAIL  controller" in user("doctor", "--no-job").stdout
        cancelled = user("cancel", run.id)
        assert cancelled.returncode == 3, cancelled.stderr
        assert "Network is unreachable" in cancelled.stderr
        assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    assert user.cluster.calls()["bkill"] == 1  # its agents may have ended it before
    assert f"{run.id}: cancelled" in user("status", run.id).stdout


def test_a_bjobs_that_fails_or_forgets_ends_nothing_while_the_agents_live(user):
    run = count(user)
    following = user.start("logs", "--follow", run.id)
    with user.cluster.cut_off("bjobs"):
        shown = user("status", run.id)
        assert f"{run.id}: unknown" in shown.stdout
        assert "Network is unreachable" in shown.stderr
    user.cluster.forget(job_id(run))
    shown = user("status", run.id).stdout
    assert f"{run.id}: running" in shown
    assert f"does not list its job {job_id(run)}" in " ".join(shown.split())
    run.agent_file(0).unlink()
    assert f"{run.id}: unknown" in user("status", run.id).stdout
    os.utime(run.missed_file, (time.time() - 60,) * 2)
    assert f"{run.id}: lost" in user("status", run.id).stdout
    user.cluster.remember(job_id(run))
    assert f"{run.id}: running" in user("status", run.id).stdout
    assert following.poll() is None
    user.write("gate", "")
    following.communicate(timeout=60)
    user.done(run)
