"""What is special to jobs on LSF: hosts that have odd names or are lost, launchers of the other
hosts' agents, the ends that LSF, its users and its administrators give jobs, and what it cannot do.
"""

import json

from cluster_user import CPU, TWO, User, job_id, log, printed
from counting import COUNT, ELASTIC_COUNT, await_counting, count, end_counting

from hpcdist.machine.network import local_addresses

SHOW = "import json, os\nprint(json.dumps(dict(os.environ)))\n"
MISLEADING = """
clusters:
  lab:
    scheduler: lsf
    environment:  # by which Lightning knows a job of Summit's
      {JSM_NAMESPACE_RANK: '0', JSM_NAMESPACE_SIZE: '1', LSB_DJOB_RANKFILE: '/nonexistent'}
"""


def test_hosts_whose_names_mean_nothing_are_reached_by_their_addresses(user):
    user.write("hpcdist.yaml", MISLEADING)
    run = user.done(user.submit(user.write("show.py", SHOW), *TWO, *CPU))
    shown = [printed(run, rank) for rank in range(2)]
    assert [one["LSB_SITE_HOST"] for one in shown] == ["hostA", "hostB"]
    assert [(one["RANK"], one["WORLD_SIZE"]) for one in shown] == [("0", "2"), ("1", "2")]
    (address,) = {one["MASTER_ADDR"] for one in shown}
    assert address in local_addresses()


def test_a_run_that_loses_a_host_and_then_its_first_goes_on_elsewhere(lsf_like, tmp_path):
    """LSF gives it the lost host once more, which it still calls ok; then that is waited for. The
    first host's loss is LSF's to answer (-r)."""
    user = User(lsf_like(kill_interval_s=60.0, limit_grace_s=60.0, loss_known_s=5.0), tmp_path)
    site = user.cluster
    run = count(user)
    job = job_id(run)
    assert site.job(job).hosts == ["hostA", "hostB"]
    site.lose_host("hostB")
    await_counting(user, run, 1)
    assert site.job(job).hosts == ["hostA", "hostC"]
    site.lose_host("hostA")
    await_counting(user, run, 2)
    assert site.job(job).hosts == ["hostC", "hostD"]
    user.write("gate", "")
    user.done(run)
    assert job_id(run) == job
    lost = [run.read_attempt_verdict(attempt) for attempt in range(run.newest_attempt())]
    assert (lost[0].kind, lost[1].kind, lost[-1].kind) == ("agent_lost", "launch", "agent_lost")
    assert "hostB" in lost[1].message


def test_a_run_goes_on_without_a_host_in_the_same_life_of_its_job(lsf_like, tmp_path):
    """The launcher's tasks on other hosts live on; with the first host, the job is LSF's."""
    user = User(lsf_like(kill_interval_s=60.0, limit_grace_s=60.0, loss_known_s=5.0), tmp_path)
    script = user.write("count.py", ELASTIC_COUNT)
    run = user.submit(script, *CPU, "--nodes", 3, "--gpus", 1, "--set", "launch.min_nodes=1")
    await_counting(user, run, num_ranks=3)
    user.cluster.lose_host("hostB")
    await_counting(user, run, 1)
    user.write("gate", "")
    user.done(run)
    assert "it went on with 2 of 3 nodes since " in run.read_verdict().message
    assert {begun.life for begun in run.read_beginnings().values()} == {0}


def test_a_job_whose_only_host_is_lost_says_so_as_long_as_lsf_cannot_reach_it(lsf_like, tmp_path):
    user = User(lsf_like(loss_known_s=0.0), tmp_path)
    run = user.submit(user.write("count.py", COUNT), *CPU, "--no-requeue")
    await_counting(user, run, num_ranks=1)
    user.cluster.lose_host("hostA")
    assert "LSF cannot reach its first host (UNKWN)" in user("status", run.id).stdout
    user.cluster.return_host("hostA")
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    (run.checkpoints_folder / "step-00000010.dcp").mkdir(parents=True)
    found = user.status(run)
    assert (found["state"], found["continue_with"]) == ("failed", f"hpcdist resume {run.id}")
    assert "LSF gave it up: its host could not be reached (TERM_ZOMBIE" in found["reason"]


BY_SSH = (
    "clusters: {lab: {scheduler: lsf, lsf: {launcher: 'ssh -o BatchMode=yes {host} {command}'}}}"
)
MISSING = "clusters: {lab: {scheduler: lsf, lsf: {launcher: 'no-such-launcher {host} {command}'}}}"


def test_ssh_starts_the_agents_and_a_job_goes_on_and_ends_with_all_of_them(lsf_like, tmp_path):
    """A fresh login and past LSF: neither environment nor directory come along, nor an end."""
    user = User(lsf_like(ssh=True, kill_interval_s=60.0, limit_grace_s=60.0), tmp_path)
    user.write("hpcdist.yaml", BY_SSH)
    run = count(user)
    user.cluster.reach_limit(job_id(run))
    await_counting(user, run, 1)
    assert run.read_attempt_verdict(0).kind == "time_limit"
    assert user("cancel", run.id).returncode == 0
    assert user.cluster.job_state(job_id(run)) == "EXIT"
    assert run.read_verdict().state == "cancelled"


def test_a_host_on_which_nothing_starts_is_told_at_once_with_what_was_said(user):
    """Long before the agents give up waiting for each other."""
    with user.cluster.refusing("blaunch", "blaunch: hostB: Cannot connect to its daemon"):
        run = user.submit(user.write("show.py", SHOW), *TWO, *CPU, "--no-requeue")
        verdict = user.verdict(run)
    assert (verdict.kind, verdict.node) == ("launch", 1)
    assert "node 1 (host hostB): no agent could be started there" in verdict.message
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    assert "blaunch: hostB: Cannot connect to its daemon" in verdict.message


def test_a_launcher_that_is_not_there_is_told_at_once(user):
    user.write("hpcdist.yaml", MISSING)
    run = user.submit(user.write("show.py", SHOW), *TWO, *CPU, "--no-requeue")
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    found = user.status(run)
    assert found["state"] == "failed"
    assert "no-such-launcher" in str(found) + "".join(path.read_text() for path in run.job_logs())


SLOW_TO_STOP = """
import os, sys, time
from pathlib import Path
from hpcdist import record

print("begun")
while not record.should_stop():
    time.sleep(0.02)
print("stopping")
while not Path(os.environ["HPCDIST_RUN_DIR"], "may-end").exists():
    time.sleep(0.01)
sys.exit(record.EXIT_STOPPED)
"""


def test_a_job_that_is_killed_while_it_stops_for_its_limit_does_not_come_back(user):
    run = user.submit(user.write("slow.py", SLOW_TO_STOP), *CPU, *TWO)
    user.wait_for_line(run, "begun")
    user.cluster.reach_limit(job_id(run))
    user.wait_for_line(run, "stopping")
    user.cluster.run("bkill", job_id(run))
    user.cluster.wait_for(lambda: "received SIGINT" in run.agent_log_file(0).read_text())
    (run.path / "may-end").touch()
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    assert user.cluster.job(job_id(run)).exit_code == 130
    assert "brequeue" not in user.cluster.calls()
    assert "cancelled" in user("status", run.id).stdout


def test_a_job_that_is_suspended_or_held_says_so_and_all_jobs_of_a_run_are_cancelled(user):
    site = user.cluster
    running = count(user)
    site.run("bstop", job_id(running))
    said = user("status", running.id).stdout
    assert f"{running.id}: running" in said
    assert f"bresume {job_id(running)}" in said
    blocker = site.submit("sleep 600", "-n", "14")
    with site.resending(2):  # bsub asks again while the master hangs
        run = user.submit("count.py", *CPU, *TWO)
    site.run("bstop", job_id(run))
    assert "bresume" in user("status", run.id).stdout
    assert user("cancel", run.id).returncode == 0
    jobs = [job for job in site.jobs() if job.name == run.id]
    assert [job.state for job in jobs] == ["EXIT"] * 3
    assert user("cancel", running.id).returncode == 0
    site.run("bkill", blocker)
    site.wait_for_end(blocker)


def test_a_job_that_is_preempted_and_one_that_an_administrator_requeues_go_on(user):
    """SIGINT, and LSF's own brequeue."""
    run = count(user)
    user.cluster.requeue(job_id(run), "TERM_PREEMPT")
    await_counting(user, run, 1)
    user.cluster.requeue(job_id(run))
    end_counting(user, run, 2)
    kinds = [run.read_attempt_verdict(attempt).kind for attempt in range(2)]
    assert kinds == ["preempted", "preempted"]


def test_where_brequeue_is_refused_the_run_ends_with_75(user):
    waiting = user.start("submit", user.write("count.py", COUNT), *CPU, *TWO, "--wait")
    (run,) = user.cluster.wait_for(user.runs)
    await_counting(user, run)
    with user.cluster.switched("brequeue_refused", True):
        user.cluster.reach_limit(job_id(run))
        _, said = waiting.communicate(timeout=100)
    assert waiting.returncode == 75, said
    verdict = run.read_verdict()
    assert (verdict.kind, verdict.state) == ("time_limit", "preempted")
    assert "User permission denied" in verdict.message
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"


DEAF = """\
import signal, time
for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
print("deaf", flush=True)
while True:
    time.sleep(1)
"""


def test_a_script_that_does_not_stop_is_killed_at_the_limit_and_says_so(lsf_like, tmp_path):
    user = User(lsf_like(kill_interval_s=0.4, limit_grace_s=0.4), tmp_path)
    run = user.submit(user.write("deaf.py", DEAF), *CPU, *TWO)
    for rank in range(2):
        user.wait_for_line(run, "deaf", rank=rank)
    user.cluster.reach_limit(job_id(run))
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    found = user.status(run)
    assert found["state"] == "failed"
    assert "run limit" in found["reason"], found
    assert user.cluster.job(job_id(run)).attempts == 1


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


def test_without_battach_attach_and_drill_say_so_and_cancel_needs_no_bjobs(user):
    run = count(user)
    drill = user("drill", "count.py", *CPU)
    assert drill.returncode == 2, drill.stderr
    assert "a drill disturbs its job from within; LSF cannot do that" in drill.stderr
    refused = user("attach", run.id, "--", "ps", "-x")
    assert refused.returncode == 3, refused.stderr
    assert "LSF has no command that enters a running job" in refused.stderr
    assert "ssh hostA -t" in refused.stderr
    with user.cluster.switched("cut_off_bjobs", True):
        assert "FAIL  controller" in user("doctor", "--no-job").stdout
        cancelled = user("cancel", run.id)
        assert cancelled.returncode == 3, cancelled.stderr
        assert "Network is unreachable" in cancelled.stderr
        assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    assert user.cluster.calls()["bkill"] == 1  # its agents may have ended it before
    assert f"{run.id}: cancelled" in user("status", run.id).stdout
