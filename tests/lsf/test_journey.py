"""From submit to summary on a simulated LSF: what the ranks are told, and what is left of a run."""

import json
import os
import re
import stat
import sys
from pathlib import Path

import pytest
from cluster_user import User, assert_accounted, events, job_id, log, printed
from counting import COUNT, await_counting, end_counting
from trainings import CPU, TWO

from hpcdist.machine.network import local_addresses

SECRETS = {
    "HF_TOKEN": "hf_Qm3xVt81pLw9",
    "WANDB_API_KEY": "e13f9ab07c55d2",
    "DATABASE_URL": "postgres://me:Zx81hunter2@db/x",
    "MY_PASSWORD": "tiger-tiger-7",
}
FOUR = ("--nodes", 2, "--gpus", 2)

TELL = """\
import json, os, sys, time
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
seen = {name: value for name, value in os.environ.items() if name[0] != "_"}
print(json.dumps(seen | {"cwd": os.getcwd()}))
"""
"""Tells what each rank sees, once the file that it is given is there."""


@pytest.fixture
def user(lsf_like, tmp_path):
    """Of a site whose host names resolve, and which leaves time after a signal."""
    hosts = tuple(f"127.0.1.{number}" for number in range(1, 5))
    return User(lsf_like(hosts=hosts, kill_interval_s=60.0, limit_grace_s=60.0), tmp_path)


def test_a_run_from_submit_to_summary_goes_on_after_its_limit(user):
    """The limit is SIGUSR2, and our own brequeue."""
    environment = user.cluster.environment | SECRETS
    job = (user.write("count.py", COUNT), *CPU, *TWO)
    rendered = user("render", *job, env=environment).stdout
    waiting = user.start("submit", *job, "--wait", "--summary-after", env=environment)
    (run,) = user.cluster.wait_for(user.runs)
    assert run.script_file.read_text() == rendered.replace("RUN", run.id)
    await_counting(user, run)
    where = json.loads(user("stacks", run.id, "--json").stdout)
    assert [(one["node"], one["of"]["rank"]) for one in where["ranks"]] == [(0, 0), (1, 1)]
    assert {"count.py"} == {Path(each["frames"][-1][0]).name for each in where["groups"]}
    user.cluster.reach_limit(job_id(run))
    end_counting(user, run)
    assert run.read_attempt_verdict(0).kind == "time_limit"

    said, errors = waiting.communicate(timeout=100)
    assert waiting.returncode == 0, errors
    assert "MASTER_ADDR 127.0.1.1" in errors
    assert "counted from" in said
    for rank in range(2):
        assert events(run, "end", rank=rank)[-1]["status"] == "done"
    assert events(run, "start", rank=1)[0]["host"] == "127.0.1.2"
    (row,) = json.loads(user("summary", "--json").stdout)
    assert (row["run"], row["state"], row["world_size"]) == (run.id, "done", 2)
    assert len(row["attempts"]) == 2
    assert row["lost_time_s"] > 0
    assert_accounted(row["accounting"], run)
    assert row["accounting"]["queue_wait_s"] is not None
    assert row["accounting"]["max_rss_bytes"] == 256 * 2**20
    assert run.id in user("runs").stdout
    assert "counted from" in user("logs", run.id, "--rank", 0).stdout
    user.cluster.wait_for((run.path / "summary.txt").exists)
    assert run.id in (run.path / "summary.txt").read_text()
    assert not left_open(run), "others may look into the run"
    assert not said_in(run, SECRETS.values())


def left_open(run):
    """What others than its user could open: a folder that is closed closes what is in it."""
    files = [
        path for path in run.path.glob("*") if path.is_file() and not path.name.startswith("saved")
    ]
    own = [run.path, *files, *run.submitit_folder.glob("*_host.sh")]
    assert len(own) > 5
    return [str(path) for path in own if stat.S_IMODE(path.stat().st_mode) & 0o077]


def said_in(run, texts):
    """The files of the run that hold one of the texts."""
    found = re.compile("|".join(map(re.escape, texts)).encode())
    files = [path for path in run.path.rglob("*") if path.is_file()]
    return [str(path) for path in files if found.search(path.read_bytes())]


def test_every_rank_is_told_its_place_as_lsf_sees_it(user):
    """GPUs and all: the ranks see those that LSF gave them."""
    folder = user.folder / "with a blank"
    folder.mkdir()
    user = User(user.cluster, folder)
    environment = user.cluster.environment | {"MINE": 'of "the" submitter'}
    script = user.write("tell.py", TELL)
    done = user("submit", script, *FOUR, *misled(user), env=environment)
    assert done.returncode == 0, done.stderr
    (run,) = user.runs()
    user.done(run)
    hosts = user.cluster.job(job_id(run)).hosts
    assert hosts == ["127.0.1.1", "127.0.1.2"]
    ports = set()
    for rank in range(4):
        seen = printed(run, rank)
        node, local_rank = divmod(rank, 2)
        expected = {
            "RANK": str(rank),
            "WORLD_SIZE": "4",
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": "2",
            "NODE_RANK": str(node),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": hosts[0],
            "TORCHELASTIC_RUN_ID": run.id,
            "LSB_SITE_HOST": hosts[node],
            "CUDA_VISIBLE_DEVICES": "0,1",
            "LSB_JOBID": job_id(run),
            "MINE": 'of "the" submitter',
            "cwd": str(folder),
        }
        assert {name: seen.get(name) for name in expected} == expected
        ports.add(seen["MASTER_PORT"])
    assert len(ports) == 1
    assert 20_000 <= int(ports.pop()) < 30_000


def test_two_jobs_on_one_host_do_not_meet(user):
    user.write("hpcdist.yaml", "clusters: {lab: {scheduler: lsf, directives: ['-m 127.0.1.3']}}\n")
    script = user.write("tell.py", TELL)
    runs = [user.submit(script, "--gpus", 1, "--", user.folder / "go") for _ in range(2)]
    ids = [job_id(run) for run in runs]
    for job in ids:
        user.cluster.wait_for_state(job, "RUN")
    user.write("go", "")
    for run in runs:
        user.done(run)
    seen = [printed(run, 0) for run in runs]
    assert [user.cluster.job(job).hosts for job in ids] == [["127.0.1.3"]] * 2
    assert seen[0]["MASTER_PORT"] != seen[1]["MASTER_PORT"]
    assert [one["WORLD_SIZE"] for one in seen] == ["1", "1"]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["0", "1"]


def test_hosts_whose_names_mean_nothing_are_reached_by_their_addresses(lsf, tmp_path):
    user = User(lsf, tmp_path)
    run = user.submit(user.write("tell.py", TELL), *TWO, *CPU)
    user.done(run)
    shown = [printed(run, rank) for rank in range(2)]
    assert [one["LSB_SITE_HOST"] for one in shown] == ["hostA", "hostB"]
    (address,) = {one["MASTER_ADDR"] for one in shown}
    assert address in local_addresses()


def misled(user):
    """Has a profile set in the job what Lightning would take for a job of Summit's."""
    user.write("ranks", "launch\n127.0.1.1\n127.0.1.2\n")
    misleading = {
        "JSM_NAMESPACE_RANK": "0",
        "JSM_NAMESPACE_SIZE": "1",
        "JSM_NAMESPACE_LOCAL_RANK": "0",
        "LSB_DJOB_RANKFILE": str(user.folder / "ranks"),
    }
    profile = {"clusters": {"lab": {"scheduler": "lsf", "environment": misleading}}}
    user.write("hpcdist.yaml", json.dumps(profile))
    return ("--cluster", "lab")


def test_a_job_runs_as_it_was_submitted(user):
    site = user.cluster
    site.run("git", "init", "-q", user.folder)
    blocker = site.submit("sleep 600", "-n", "16")
    site.wait_for_state(blocker, "RUN")
    run = user.submit(user.write("say.py", "print('as it was')\n"), *CPU)
    user.write("say.py", "print('edited')\n")
    site.run("bkill", blocker)
    user.done(run)
    assert log(run) == "as it was\n"
    assert os.path.exists(user.folder / "say.py")


def test_hpcdist_detects_the_site_where_there_is_no_slurm(lsf, tmp_path):
    words = (sys.executable, "-m", "hpcdist", "cluster", "detect", "--scheduler=lsf")
    found = lsf.run(*words, cwd=tmp_path).stdout
    assert "gpuv100" in found
    assert "closed" not in found
