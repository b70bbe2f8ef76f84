"""The hosts of a job on LSF: named as nobody else names them, and lost."""

import sys

from cluster_user import CPU, TWO, User, job_id, printed
from counting import COUNT, await_counting, count

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


def test_hpcdist_detects_the_site(user):
    words = (sys.executable, "-m", "hpcdist", "cluster", "detect")
    found = user.cluster.run(*words, cwd=user.folder).stdout
    assert "gpuv100" in found
    assert "closed" not in found


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
    script = user.write(
        "count.py", COUNT.replace("record.start(", "record.elastic(); record.start(")
    )
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
