"""What every scheduler must do: each scenario once, for all of them.

A test file per scheduler imports all of these, and has a fixture `site`: one `Site`, which says
what this scheduler calls things, and in `cannot` which scenarios it has not, and why.
"""

import contextlib
import ipaddress
import json
import os
import re
import signal
import socket
import stat
from dataclasses import dataclass, field

import pytest
from cluster_user import CPU, TWO, agent_pid, events, job_id, log, printed
from containers import container, image  # noqa: F401 - a fixture
from counting import COUNT, await_counting, count, end_counting

from hpcdist.runs import nodes
from hpcdist.runs.run import Sweep

FOUR = ("--nodes", 2, "--gpus", 2)


@dataclass
class Site:
    """A scheduler as the scenarios see it; those of the tests' schedulers extend it."""

    user: object
    cannot: dict = field(default_factory=dict)
    """Why not, by the name of a scenario."""
    sees_gpus: bool = False
    """Whether its jobs are given GPUs (whatever this machine has)."""
    limit: tuple = ()
    """Options of a job whose time limit comes soon, where nobody can say that it comes."""
    secret_files: str = "(?!)"
    """Pattern of the names of files by which the environment comes to the job."""

    def hosts(self, run):
        """By node, as the scheduler has said."""
        return [socket.gethostname()] * run.spec.outline.resources.nodes

    def warn(self, run):
        """Tell it that its time limit comes."""

    def is_active(self, job):  # noqa: ARG002 - there are no jobs
        """Whether the scheduler has the job still."""
        return False

    def process(self, run, pid):  # noqa: ARG002 - one machine numbers them
        """The pid here of a process of the run, by the one that its host gives it."""
        return pid

    @contextlib.contextmanager
    def full(self):
        """While open, nothing starts."""
        yield

    def kill(self, run):
        """End its job past hpcdist, as its user may."""

    @contextlib.contextmanager
    def doubled(self):
        """While open, each submission makes two jobs."""
        yield

    def jobs_of(self, run):
        """The ids of all jobs that have been submitted for the run."""
        return [job_id(run)]


@pytest.fixture(autouse=True)
def able(request, site):
    reason = site.cannot.get(request.function.__name__)
    if reason:
        pytest.skip(f"cannot: {reason}")


@pytest.fixture
def user(site):
    return site.user


WORK = """\
import os, time
from pathlib import Path
if os.environ["RANK"] == "1":
    Path("pid.new").write_text(str(os.getpid()))
    Path("pid.new").rename("pid")
    raise ValueError("the second rank cannot go on")
while not Path("pid").exists() or Path("/proc", Path("pid").read_text()).exists():
    time.sleep(0.005)
raise ConnectionResetError("the other rank is gone")
"""


def test_a_rank_that_raised_is_named_and_not_those_that_failed_because_of_it(site, user):
    done = user("submit", *user.options, user.write("work.py", WORK), *CPU, *TWO, "--wait")
    assert done.returncode == 1
    (run,) = user.runs()
    verdict = run.read_verdict()
    first = verdict.first
    assert (verdict.kind, first.rank, first.node) == ("exception", 1, 1)
    assert (first.report.exception, first.host) == ("ValueError", site.hosts(run)[1])
    assert "the second rank cannot go on" in verdict.message
    assert first.host in done.stderr
    user.cluster.wait_for_end(job_id(run))
    assert user.status(run)["state"] == "failed"
    assert run.newest_attempt() == 0


WAIT = """\
import os, time
print(f"waits {os.getpid()}", flush=True)  # in one piece, where output is not buffered
time.sleep(600)
"""


def waiting(user, *options, ranks=2):
    """A run whose ranks are there."""
    run = user.submit(user.write("wait.py", WAIT), *CPU, *options)
    for rank in range(ranks):
        user.wait_for_line(run, "waits", rank=rank)
    return run


def pid(run, rank):
    return int(log(run, rank).split()[1])


def test_a_rank_that_was_killed_is_named(site, user):
    run = waiting(user, *TWO)
    os.kill(site.process(run, pid(run, 1)), signal.SIGKILL)
    verdict = user.verdict(run)
    first = verdict.first
    assert (verdict.kind, first.rank, first.signal) == ("signal", 1, "SIGKILL")
    assert first.host == site.hosts(run)[1]
    user.cluster.wait_for_end(job_id(run))


def test_an_agent_that_was_killed_is_named_with_its_node(site, user):
    """The first node's; the second one's is killed where a node is lost in two runs."""
    run = waiting(user, *TWO, "--no-requeue")
    os.kill(site.process(run, agent_pid(run, 0)), signal.SIGKILL)
    verdict = user.verdict(run)
    assert (verdict.kind, verdict.node) == ("agent_lost", 0)
    user.cluster.wait_for_end(job_id(run))


def test_cancel_leaves_nothing(site, user):
    run = waiting(user, *FOUR, ranks=4)
    done = user("cancel", run.id)
    assert done.returncode == 0, done.stderr
    assert not site.is_active(job_id(run))
    for rank in range(4):
        with pytest.raises(ProcessLookupError):
            os.kill(site.process(run, pid(run, rank)), 0)
    verdict = run.read_verdict()
    assert (verdict.state, verdict.exit_code_of_run) == ("cancelled", 130)
    assert user("cancel", run.id).returncode == 0  # again


def test_a_run_whose_job_is_killed_past_hpcdist_is_cancelled(site, user):
    run = count(user)
    site.kill(run)
    user.cluster.wait_for_end(job_id(run))
    found = user.cluster.wait_for(lambda: (f := user.status(run))["state"] != "running" and f)
    assert found["state"] == "cancelled", found
    assert run.newest_attempt() == 0


def test_a_run_that_waits_says_why_and_can_be_cancelled(site, user):
    with site.full():
        run = user.submit(user.write("wait.py", WAIT), *CPU, *TWO)
        found = user.cluster.wait_for(lambda: (f := user.status(run))["reason"] and f)
        assert (found["state"], found["hosts"]) == ("pending", [])
        assert "it waits for" in found["reason"]
        assert user("cancel", run.id).returncode == 0
        assert not site.is_active(job_id(run))
    assert run.read_verdict().state == "cancelled"
    assert log(run) == ""


SHOW = """\
import json, os, sys, time
kept = {name: value for name, value in os.environ.items() if name[0] != "_"}
print(json.dumps(kept | {"cwd": os.getcwd()}), flush=True)
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


def test_every_rank_is_told_its_place_and_the_submitters_environment(site, user):
    environment = user.cluster.environment | {"MINE": 'of "the"\nsubmitter\'s $HOME'}
    options = () if site.sees_gpus else CPU
    run = user.submit(user.write("show.py", SHOW), *FOUR, *options, env=environment)
    user.done(run)
    hosts = [events(run, "start", rank=2 * node)[0]["host"] for node in range(2)]
    assert hosts == site.hosts(run)
    seen = [printed(run, rank) for rank in range(4)]
    for rank, one in enumerate(seen):
        node, local_rank = divmod(rank, 2)
        expected = {
            "RANK": str(rank),
            "WORLD_SIZE": "4",
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": "2",
            "NODE_RANK": str(node),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": "2",
            "TORCHELASTIC_RUN_ID": run.id,
            "CUDA_VISIBLE_DEVICES": "0,1" if site.sees_gpus else None,
            "MINE": environment["MINE"],
            "cwd": str(user.folder),
        }
        assert {name: one.get(name) for name in expected} == expected
    ((address, port),) = {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in seen}
    assert 20_000 <= int(port) < 30_000
    is_apart = len(set(hosts)) == 2
    assert address == (hosts[0] if is_apart else "127.0.0.1") or (
        is_apart and not ipaddress.ip_address(address).is_loopback
    )


def test_two_jobs_on_one_node_do_not_meet(site, user):
    options = () if site.sees_gpus else CPU
    go = user.folder / "go"
    script = user.write("show.py", SHOW)
    runs = [user.submit(script, "--gpus", 1, *options, "--", go) for _ in range(2)]
    for run in runs:
        user.wait_for_line(run, "MASTER_PORT")
    go.touch()
    for run in runs:
        user.done(run)
    first, second = [printed(run, 0) for run in runs]
    assert site.hosts(runs[0]) == site.hosts(runs[1])
    assert first["MASTER_PORT"] != second["MASTER_PORT"]
    assert (first["WORLD_SIZE"], second["WORLD_SIZE"]) == ("1", "1")
    if site.sees_gpus:
        assert {one["CUDA_VISIBLE_DEVICES"] for one in (first, second)} == {"0", "1"}


SECRETS = {
    "HF_TOKEN": "hf_Qm3xVt81pLw9",
    "WANDB_API_KEY": "e13f9ab07c55d2",
    "DATABASE_URL": "postgres://me:Zx81hunter2@db/x",
    "MY_PASSWORD": "tiger-tiger-7",
}


def assert_private(site, run):
    """That others can open nothing of the run (a folder that is closed closes what is in it), and
    that no file but those by which the environment comes to the job holds a secret."""
    files = [path for path in run.path.rglob("*") if path.is_file()]
    secret = re.compile("|".join(map(re.escape, SECRETS.values())).encode())
    brought = [path for path in files if re.fullmatch(site.secret_files, path.name)]
    assert not [path for path in files if secret.search(path.read_bytes()) and path not in brought]
    own = [path for path in run.path.glob("*.*") if path.is_file()]
    assert len(own) > 3
    closed = [run.path, *own, *brought, *run.submitit_folder.glob("*_host.sh")]
    assert not [path for path in closed if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_a_run_goes_on_after_its_limit_and_its_summary_has_both_lives_and_accounting(site, user):
    job = (user.write("count.py", COUNT), *CPU, *TWO, *site.limit)
    environment = user.cluster.environment | SECRETS
    words = ("submit", *job, "--wait")
    with user.following(*words, env=environment) as command:
        (run,) = user.cluster.wait_for(user.runs)
        follower = user.submit("count.py", *CPU, "--after", run.id)
        await_counting(user, run)
        site.warn(run)
        end_counting(user, run, is_last=not site.limit)
        said, errors = command.communicate(timeout=100)
    assert command.returncode == 0, errors
    assert "counted from" in said
    assert run.read_attempt_verdict(0).kind == "time_limit"
    (row,) = json.loads(user("summary", run.id, "--json").stdout)
    assert (row["run"], row["state"], row["world_size"]) == (run.id, "done", 2)
    assert len(row["attempts"]) == run.newest_attempt() + 1
    assert row["lost_time_s"] > 0
    user.done(follower)  # which waited on
    assert_private(site, run)

    def look():
        (row,) = json.loads(user("summary", run.id, "--json").stdout)
        books = row["accounting"] or {}
        return books if books.get("exit_code") is not None else None

    books = user.cluster.wait_for(look)  # some tell of an end seconds later
    assert (books["job_id"], books["exit_code"]) == (job_id(run), 0)
    assert {*site.hosts(run)} <= {*books["nodes"]}
    assert books["queue_wait_s"] >= 0
    assert books["elapsed_s"] >= 0


def test_without_requeue_a_run_ends_with_75_and_resume_goes_on(site, user):
    job = (user.write("count.py", COUNT), *CPU, *TWO, *site.limit, "--no-requeue")
    with user.following("submit", *job, "--wait") as command:
        (run,) = user.cluster.wait_for(user.runs)
        await_counting(user, run)
        site.warn(run)
        said, errors = command.communicate(timeout=100)
    assert command.returncode == 75, errors
    verdict = run.read_verdict()
    assert (verdict.kind, verdict.exit_code_of_run) == ("time_limit", 75)
    assert {line.split("] ")[1] for line in said.splitlines()} == {f"stopped {verdict.step}"}
    user.cluster.wait_for_end(job_id(run))
    assert f"hpcdist resume {run.id}" in user("status", run.id).stdout

    user.write("gate", "")
    resumed = user("resume", run.id)
    assert resumed.returncode == 0, resumed.stderr
    user.done(run)
    assert run.newest_attempt() == 1
    for rank in range(2):
        assert log(run, rank) == f"stopped {verdict.step}\ncounted from {verdict.step}\n"


SAYS = """\
import os, sys
print("says", sys.argv[1], os.environ["WORLD_SIZE"], flush=True)
sys.exit(3 if sys.argv[1] == "fail" else 0)
"""


def test_a_sweep_is_an_array_per_shape_and_its_worst_end_counts(user):
    user.write("says.py", SAYS)  # which is a module of this folder, too
    job = (*user.options, "-m", "says", "--no-snapshot", *CPU)
    job = (*job, "--sweep", "nodes=1,2 args=[a],[fail]")
    done = user("submit", *job, "--wait", "--json")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    sweep = Sweep(user.folder / "runs" / answer["sweep"])
    runs = sweep.runs()
    assert [run.read_verdict().state for run in runs] == ["done", "failed"] * 2
    assert [log(run).strip() for run in runs] == [
        f"says {word} {nodes}" for nodes in (1, 2) for word in ("a", "fail")
    ]
    arrays = [run.spec.sweep.job_name for run in runs]
    assert arrays == [job["name"] for job in answer["jobs"] for _ in range(2)]
    assert "2 done, 2 failed" in user("status", sweep.id).stdout
    for run in runs:
        user.cluster.wait_for_end(job_id(run))


def test_elements_of_an_array_are_requeued_and_cancelled_by_themselves(site, user):
    script = user.write("count.py", COUNT)
    words = ("--repeat", 3, "--max-parallel", 2)
    sweep = user.submit_sweep(script, *CPU, *site.limit, *words)
    first, second, last = sweep.runs()
    for run in (first, second):
        await_counting(user, run, num_ranks=1)
    assert user.status(last)["state"] == "pending"
    assert user("cancel", first.id).returncode == 0
    assert not site.is_active(job_id(first))
    await_counting(user, last, num_ranks=1)
    site.warn(last)
    end_counting(user, last, is_last=not site.limit)
    user.done(second)
    assert first.read_verdict().state == "cancelled"
    assert (first.newest_attempt(), second.newest_attempt()) == (0, 0)


def test_a_run_starts_after_another_as_it_is_told_and_says_so_where_it_never_can(site, user):
    user.write("count.py", COUNT)
    fails = user.write("fails.py", COUNT + "sys.exit(3)\n")
    first = user.submit("count.py", *CPU)
    second = user.submit(fails, *CPU, "--after", first.id)
    third = user.submit("count.py", *CPU, "--after", f"any:{second.id}")
    never = user.submit("count.py", *CPU, "--after", second.id)
    waits = user.status(second)
    assert (waits["state"], "wait" in waits["reason"], log(second)) == ("pending", True, "")
    user.write("gate", "")
    user.done(first)
    assert user.verdict(second).state == "failed"
    user.done(third)
    assert third.read_beginning(0).time_s > second.read_verdict().time_s
    sentence = "did not end as --after requires"
    user.cluster.wait_for(lambda: sentence in (user.status(never)["reason"] or ""))
    assert user("cancel", never.id).returncode == 0
    assert not site.is_active(job_id(never))

    user.cluster.wait_for_end(job_id(second))
    refused = user("submit", "count.py", *user.options, *CPU, "--after", second.id)
    assert refused.returncode == 2
    assert f"run {second.id} is failed" in refused.stderr


def test_a_job_in_an_image_does_outside_what_takes_the_schedulers_commands(
    site,
    user,
    image,  # noqa: F811 - pytest's way
):
    run = count(user, *container(image), *site.limit)
    site.warn(run)
    end_counting(user, run, is_last=not site.limit)
    assert run.read_attempt_verdict(0).kind == "time_limit"
    assert run.read_spec().container.runtime == "charliecloud"


def test_of_two_jobs_of_one_run_one_has_it_and_the_other_ends_at_once(site, user):
    with site.doubled():
        run = user.submit(user.write("count.py", COUNT), *CPU, *TWO)
    await_counting(user, run)
    owner = job_id(run)
    (other,) = [job for job in site.jobs_of(run) if job != owner]
    user.cluster.wait_for_end(other)
    said = (run.submitit_folder / f"{other}_0_log.out").read_text()
    assert f"job {owner} has the run" in said
    assert user.status(run)["job_id"] == owner
    user.write("gate", "")
    user.done(run)
    assert (run.newest_attempt(), log(run)) == (0, "counted from 0\n")


HELD = """\
import os, sys
print(os.environ["RANK"], os.environ["WORLD_SIZE"], "torch" in sys.modules, flush=True)
import torch
"""


def test_runs_start_at_once_in_nodes_that_are_held(user):
    held = user("dev", *user.options, *CPU, *FOUR, "--idle", "0:05", "--json")
    assert held.returncode == 0, held.stderr
    (dev,) = user.runs()
    script = user.write("held.py", HELD)
    inside = (*CPU, "--in", "dev", "--gpus", 2)
    done = user("submit", script, *inside, "--nodes", 1, "--json")  # which leaves a node out
    assert done.returncode == 0, done.stderr
    (first,) = [one for one in user.runs() if one.id != dev.id]
    assert [log(first, rank).strip() for rank in range(2)] == ["0 2 True", "1 2 True"]
    done = user("submit", user.write("wait.py", WAIT), *inside, "--nodes", 2, "--detach")
    (run,) = [one for one in user.runs() if one.id not in (dev.id, first.id)]
    for rank in range(4):
        user.wait_for_line(run, "waits", rank=rank)
    assert done.stdout.split() == [run.id]
    assert user.status(run)["state"] == "running"
    assert {job_id(one) for one in user.runs()} == {job_id(dev)}
    assert user("cancel", run.id).returncode == 0
    assert user.status(dev)["state"] == "running"
    assert user("cancel", "dev").returncode == 0
    states = [one.read_verdict().state for one in (dev, first, run)]
    assert states == ["cancelled", "done", "cancelled"]
    user.cluster.wait_for_end(job_id(dev))


def test_a_node_that_was_lost_in_two_runs_is_left_out(site, user):
    run = waiting(user, *TWO, "--no-requeue")
    os.kill(agent_pid(run, 1), signal.SIGKILL)
    verdict = user.verdict(run)
    lost = verdict.host
    assert (verdict.kind, verdict.node) == ("agent_lost", 1)
    user.cluster.wait_for_end(job_id(run))
    script = user.write("wait.py", WAIT)
    assert "is left out" not in user("render", script, *CPU, *TWO).stderr
    nodes.note("agent_lost", lost, "another-run")
    rendered = user("render", script, *CPU, *TWO)
    assert f"{lost} is left out: it was lost in {run.id}, was lost in another-run" in " ".join(
        rendered.stderr.split()
    )
    again = waiting(user, *TWO)
    assert lost not in site.hosts(again)
    assert user("cancel", again.id).returncode == 0
    listed = user("cluster", "nodes", "--forget", lost)
    assert listed.stdout.count(lost) == 3
    assert "left out" not in user("render", script, *CPU, *TWO).stderr
