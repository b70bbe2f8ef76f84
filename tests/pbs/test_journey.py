"""Runs as PBS's jobs, from the submission to their end."""

import json
import os
import subprocess

from containers import container, image  # noqa: F401 - a fixture
from waiting import wait_for

from hpcdist.runs.run import Run

REAL = os.environ.get("HPCDIST_TEST_PBS")

TWO = ("--nodes", "2", "--gpus", "1")
PBS = ("--scheduler", "pbs", "--set", "launch.device=cpu")


def test_submit_wait_shows_the_ranks_of_both_hosts_and_ends_with_the_runs_code(user, monkeypatch):
    monkeypatch.setenv("ODD", "it's odd\n$HOME")
    user.open_gate()
    done = user("submit", "count.py", *PBS, *TWO, "--wait")
    assert "counted from 0 as rank 0 it's odd" in done.stdout
    assert "counted from 0 as rank 1 it's odd" in done.stdout
    (user.folder / "fail.py").write_text(
        "import os\nraise SystemExit(3 * int(os.environ['RANK']))\n"
    )
    done = user(
        "submit",
        "fail.py",
        *PBS,
        *TWO,
        "--wait",
        code=1,
    )
    assert "rank 1" in done.stderr
    run, *_ = json.loads(user("summary", "--json").stdout)
    assert run["accounting"]["state"] == "F"
    assert len(run["accounting"]["nodes"]) == 2


def test_a_run_goes_on_as_another_job_before_its_limit_and_what_waits_for_it_waits_on(user):
    limit = ("--time", "0.1", "--set", "launch.requeue=true")
    run = user.submit(*TWO, *limit)
    first = run.read_job_id()
    after = user.submit("--after", run.id)
    user.wait_for_start(run, life=1)
    user.open_gate()
    user.wait_for_state(run, "done")
    assert run.read_job_id() != first
    assert run.read_attempt_verdict(0).kind == "time_limit"
    begin = (run.path / "saved-0").read_text()
    assert f"counted from {begin} as rank 0" in user("logs", run.id).stdout
    user.wait_for_state(after, "done")


def test_a_run_that_was_cancelled_is_resumed(user):
    run = user.submit(*TWO)
    user.wait_for_start(run)
    user("cancel", run.id)
    first = run.read_job_id()
    user("resume", run.id)
    assert run.read_job_id() != first
    user.wait_for_start(run, life=1)
    user.open_gate()
    user.wait_for_state(run, "done")
    assert run.read_attempt_verdict(0).state == "cancelled"


def test_a_run_in_an_image_goes_on_as_another_job_too(
    user,
    image,  # noqa: F811 - pytest's way
):
    limit = ("--time", "0.1", "--set", "launch.requeue=true")
    run = user.submit(*TWO, *limit, *map(str, container(image)))
    first = run.read_job_id()
    user.wait_for_start(run, life=1)
    user.open_gate()
    user.wait_for_state(run, "done")
    assert run.read_job_id() != first
    begin = (run.path / "saved-0").read_text()
    assert f"counted from {begin} as rank 0" in user("logs", run.id).stdout


def test_status_says_why_a_job_waits_cancel_ends_it_and_pbs_removes_its_followers(user):
    run = user.submit(*TWO, "--set", "resources.cpus_per_gpu=4")
    user.wait_for_start(run)
    waiting = user.submit()
    follower = user.submit("--after", run.id)
    assert "it waits for nodes to become free" in user("status", waiting.id).stdout
    assert "it waits for the end of another job" in user("status", follower.id).stdout
    user("cancel", run.id)
    assert user.status(run)["state"] == "cancelled"
    found = user.wait_for_state(follower, "cancelled")
    assert "did not end as --after requires, so PBS removed it" in str(found)
    user.wait_for_start(waiting, ranks=1)
    subprocess.run(["qdel", waiting.read_job_id()], check=True)
    user.wait_for_state(waiting, "cancelled")


def test_a_sweep_is_one_array_whose_runs_go_on_by_themselves(user):
    limit = ("--time", "0.1", "--set", "launch.requeue=true")
    words = ("--sweep", 'args=["a"],["b"],["c"]', "--max-parallel", "2", "--summary-after", *limit)
    done = user("submit", "count.py", *PBS, *words)
    assert "3 runs submitted to pbs, as 1 job" in done.stderr
    sweep = next(user.folder.glob("runs/*/sweep.json")).parent
    first, second, third = (Run(sweep.parent / f"{sweep.name}-00{index}") for index in range(3))
    assert second.read_job_id().endswith("[1]")
    user("submit", "count.py", "--scheduler", "pbs", "--after", first.id, code=2)
    user.wait_for_start(second, life=1, ranks=1)
    user.open_gate()
    for run in (first, second, third):
        user.wait_for_state(run, "done")
    assert "[" not in second.read_job_id()
    wait_for((sweep / "summary.txt").exists)
    assert "3" in (sweep / "summary.txt").read_text()


def test_detect_writes_a_profile_and_what_can_never_start_is_refused(user):
    text = user("cluster", "detect", "--scheduler", "pbs").stdout
    assert "scheduler: pbs" in text
    if not REAL:
        done = user("submit", "count.py", "--scheduler", "pbs", "--partition", "closed", code=2)
        assert "queue closed is disabled" in done.stderr
    done = user("submit", "count.py", "--scheduler", "pbs", "--partition", "wrokq", code=2)
    assert "queues are: workq" in done.stderr
    done = user("submit", "count.py", "--scheduler", "pbs", "--nodes", "99", code=2)
    assert "with the 1 CPU and 1 GPU that each needs" in done.stderr


def test_doctor_examines_the_server(user):
    found = json.loads(user("doctor", "--scheduler", "pbs", "--no-job", "--json").stdout)
    states = {finding["name"]: finding["state"] for finding in found}
    assert (states["commands"], states["server"], states["history"]) == ("pass", "pass", "pass")


def test_a_sweep_runs_on_several_clusters_of_which_one_is_this_machine(user):
    clusters = {"boxes": {"scheduler": "pbs"}, "laptop": {"scheduler": "local"}}
    (user.folder / "hpcdist.yaml").write_text(json.dumps({"clusters": clusters}))
    user.open_gate()
    words = ("--sweep", "cluster=boxes,laptop,local", "--set", "launch.device=cpu")
    done = user("render", "count.py", *words)
    assert done.stdout.count("#PBS -N") == done.stdout.count("# ---- script 1 of 3 ----") == 1
    swept = json.loads(user("submit", "count.py", *words, "--wait", "--json").stdout)
    assert swept["scheduler"] == "pbs, local"
    assert swept["jobs"][0]["job_id"] == swept["runs"][0]["job_id"]
    assert [(run["point"], run["verdict"]["state"]) for run in swept["runs"]] == [
        ({"cluster": name}, "done") for name in ("boxes", "laptop", "local")
    ]
    listed = json.loads(user("runs", "--json").stdout)
    assert [(run["scheduler"], run["cluster"]) for run in listed] == [
        ("pbs", "boxes"),
        ("local", "laptop"),
        ("local", None),
    ]
    assert "boxes, laptop, -" in user("runs").stdout
    done = user("submit", "count.py", *words, "--cluster", "boxes", code=2)
    assert "--sweep cluster and --cluster boxes contradict each other" in done.stderr
    done = user("submit", "count.py", *words, "--summary-after", code=2)
    assert "is for the runs of one scheduler, and the sweep has pbs, local" in done.stderr
    done = user("submit", "count.py", "--sweep", "cluster=boxes,box", code=2)
    assert "there is no cluster called 'box'" in done.stderr
