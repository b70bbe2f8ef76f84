"""Sweeps, dependencies and the summary after, on a real cluster."""

import json
import os
import re
import shutil
import signal
from itertools import pairwise

import pytest
from cluster_user import User, job_id, log

from hpcdist.runs.sweep import Sweep

CPU = ("--set", "launch.device=cpu")

SAYS = """
import os, sys, time
from pathlib import Path
word = sys.argv[1]
print("says", word, os.environ["WORLD_SIZE"], os.environ.get("SLURM_ARRAY_JOB_ID"), flush=True)
if word.startswith("wait"):
    while not Path("gate").exists():
        time.sleep(0.05)
if word.endswith("fail"):
    sys.exit(3)
"""

COUNTS = """
import os, time
from pathlib import Path
mine = Path("now", f"{os.environ['SLURM_JOB_ID']}-{os.environ['RANK']}")
if os.environ["RANK"] == "0":
    mine.touch()
    time.sleep(0.5)
    print("at once", len(os.listdir("now")), flush=True)
    mine.unlink()
"""


@pytest.fixture
def user(slurm, tmp_path):
    user = User(slurm, tmp_path)
    user.write("says.py", SAYS)
    return user


@pytest.fixture
def sbatch_calls(user, tmp_path):
    """Environment in which sbatch notes its calls, and fails from one of them on."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = tmp_path / "calls"
    real = shutil.which("sbatch", path=user.cluster.environment["PATH"])

    def environment(fails_from=1000):
        (folder / "sbatch").write_text(
            f'#!/bin/bash\n[ "$1" = --version ] || echo "$*" >> {calls}\n'
            f"if [ $(wc -l < {calls}) -ge {fails_from} ]; then\n"
            "  echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2; exit 1\nfi\n"
            f'exec {real} "$@"\n'
        )
        (folder / "sbatch").chmod(0o755)
        calls.touch()
        before = user.cluster.environment
        return before | {"PATH": f"{folder}{os.pathsep}{before['PATH']}"}

    environment.made = lambda: calls.read_text().splitlines()
    return environment


def submit_sweep(user, *arguments, **options):
    done = user("submit", "says.py", *CPU, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return Sweep(user.folder / "runs" / done.stdout.splitlines()[0])


def ended(user, sweep):
    """The runs of a sweep, once all have verdicts and Slurm has let go of them."""
    runs = sweep.runs()
    for run in runs:
        user.verdict(run)
        user.cluster.wait_for_end(job_id(run))
    return runs


def test_one_array_per_shape_as_rendered_and_each_point_a_run(user, sbatch_calls):
    options = ("--sweep", "nodes=2,1 args=[a],[b]", "--max-parallel", "8")
    options = (*options, "--summary-after")
    rendered = user("render", "says.py", *CPU, *options).stdout
    sweep = submit_sweep(user, *options, env=sbatch_calls())
    assert len(sbatch_calls.made()) == 3  # two shapes, and the summary
    scripts = [path.read_text() for path in sorted(sweep.path.glob("array-*/script.sh"))]
    scripts.append((sweep.path / "summary-job" / "script.sh").read_text())
    expected = "".join(
        f"# ---- script {number} of 3 ----\n{script}" for number, script in enumerate(scripts, 1)
    ).replace(sweep.id, "RUN")
    for job in sweep.read().jobs:
        rendered = rendered.replace(f"JOBID-of-{job.name.replace(sweep.id, 'RUN')}", job.job_id)
    assert rendered == expected

    runs = ended(user, sweep)
    assert [run.read_verdict().state for run in runs] == ["done"] * 4
    arrays = [job.job_id for job in sweep.read().jobs]
    assert [log(run).strip() for run in runs] == [
        f"says {word} {nodes} {array}"
        for nodes, array in zip((2, 1), arrays, strict=True)
        for word in "ab"
    ]
    listed = [run["run"] for run in json.loads(user("runs", "--json").stdout)]
    assert listed == [f"{sweep.id}-{index:03d}" for index in range(4)]
    created = [run.read_spec().created_s for run in runs]
    assert all(before < after for before, after in pairwise(created))
    user.cluster.wait_for((sweep.path / "summary.json").exists)
    assert len(json.loads((sweep.path / "summary.json").read_text())) == 4
    assert runs[3].id in (sweep.path / "summary.txt").read_text()
    user.cluster.wait_for_end(sweep.read().summary_job_id)


def test_arrays_are_split_at_the_sites_limit(user, sbatch_calls):
    with user.cluster.settings(MaxArraySize=2):
        sweep = submit_sweep(user, "--sweep", "args=[a],[b]", "--repeat", "2", env=sbatch_calls())
        assert len(sbatch_calls.made()) == 2
        assert [len(job.runs) for job in sweep.read().jobs] == [2, 2]
        runs = ended(user, sweep)
    assert [run.read_verdict().state for run in runs] == ["done"] * 4
    assert [log(run).split()[1] for run in runs] == [*"aabb"]
    places = [run.read_sweep_place() for run in runs]
    assert [(place.index, place.repeat) for place in places] == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_max_parallel_holds_over_all_shapes(user):
    user.write("says.py", COUNTS)
    (user.folder / "now").mkdir()
    # Without a limit, all four would fit the cluster at once.
    options = ("--sweep", "nodes=1,2", "--repeat", "2")
    sweep = submit_sweep(user, *options, "--max-parallel", "2")
    counts = [int(log(run).split()[-1]) for run in ended(user, sweep)]
    assert max(counts) <= 2


def test_a_later_refusal_says_what_was_submitted_and_leaves_no_half_made_runs(user, sbatch_calls):
    options = ("--sweep", "nodes=1,2 args=[a],[b]")
    refused = user("submit", "says.py", *CPU, *options, env=sbatch_calls(fails_from=2))
    assert refused.returncode == 3
    assert "2 of the 4 runs of sweep" in refused.stderr
    assert "AssocMaxSubmitJobLimit" in refused.stderr
    (file,) = (user.folder / "runs").glob("*/sweep.json")
    sweep = Sweep(file.parent)
    assert f"hpcdist cancel {sweep.id}" in refused.stderr
    assert [run.read_outline().resources.nodes for run in ended(user, sweep)] == [1, 1]


def test_a_point_that_no_node_could_hold_is_found_before_any_is_submitted(user, sbatch_calls):
    refused = user("submit", "says.py", "--sweep", "nodes=1,9", env=sbatch_calls())
    assert refused.returncode == 2
    assert "--sweep nodes=9: resources.nodes is 9, but partition main has 4" in refused.stderr
    assert sbatch_calls.made() == []
    assert not (user.folder / "runs").exists()


def test_an_interruption_of_the_waiting_leaves_the_sweep_and_cancel_ends_all_of_it(user):
    process = user.start(
        "submit", "says.py", *CPU, "--sweep", "args=[wait]", "--repeat=4", "--wait"
    )
    sweep = Sweep(user.folder / "runs" / process.stdout.readline().strip())
    for run in sweep.runs():
        user.wait_for_line(run, "says wait")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=150)
    assert process.returncode == 130
    assert f"sweep {sweep.id} continues" in said

    status = user("status", sweep.id).stdout
    assert status.startswith(f"{sweep.id}: 4 runs, 4 running\n")
    assert user("cancel", sweep.id).stderr.count(": cancelled") == 4
    assert [run.read_verdict().state for run in sweep.runs()] == ["cancelled"] * 4


STEPS = """
import time
from hpcdist import record
while True:
    record.step(samples=1)
    time.sleep(0.01)
"""


def test_a_part_cancelled_from_outside_before_it_starts_is_cancelled_and_a_suspended_one_rests(
    user,
):
    user.write("steps.py", STEPS)
    done = user("submit", "steps.py", *CPU, "--repeat", "3", "--max-parallel", "1")
    assert done.returncode == 0, done.stderr
    sweep = Sweep(user.folder / "runs" / done.stdout.splitlines()[0])
    works, waits, _ = sweep.runs()
    user.cluster.wait_for(lambda: progress(user, works, "samples_per_s"))
    user.cluster.run("scancel", job_id(waits))
    user.cluster.wait_for(lambda: user.status(waits)["state"] == "cancelled")
    assert "took it out of its array" in user("status", waits.id).stdout

    user.cluster.run("scontrol", "suspend", job_id(works))
    said = user("status", works.id).stdout
    assert (f"{works.id}: running" in said, "Slurm has suspended it" in said) == (True, True)
    assert (progress(user, works, "samples_per_s"), progress(user, works, "step") > 0) == (None, 1)
    user.cluster.run("scontrol", "resume", job_id(works))
    assert user("cancel", sweep.id).returncode == 0


def progress(user, run, figure):
    """A figure of `hpcdist status --json`; None before there is one."""
    return (user.status(run)["progress"] or {}).get(figure)


def test_a_run_starts_after_another_that_ended_well(user):
    first = user.submit("says.py", *CPU, "--", "wait")
    second = user.submit("says.py", *CPU, "--after", first.id, "--", "a")
    described = json.loads(user("status", second.id, "--json").stdout)
    assert (described[0]["state"], log(second)) == ("pending", "")
    user.write("gate", "")
    user.done(second)
    assert second.read_spec().created_s < first.read_verdict().time_s
    third = user.submit("says.py", *CPU, "--after", first.id, "--", "a")
    assert "dependency" not in third.script_file.read_text()
    user.done(third)


def test_what_could_never_start_is_removed_and_says_so(user):
    sweep = submit_sweep(user, "--sweep", "args=[wait],[wait-and-fail]")
    waits_for_all = user.submit("says.py", *CPU, "--after", sweep.id, "--", "a")
    goes_anyway = user.submit("says.py", *CPU, "--after", f"any:{sweep.id}", "--", "b")
    user.write("gate", "")  # Slurm decides about an array when all of it has ended
    user.cluster.wait_for_state(job_id(waits_for_all), "CANCELLED")
    status = user("status", waits_for_all.id).stdout
    assert status.startswith(f"{waits_for_all.id}: cancelled")
    assert "did not end as --after requires" in status
    user.done(goes_anyway)
    ended(user, sweep)

    failed = f"{sweep.id}-001"
    refused = user("submit", "says.py", *CPU, "--after", failed, "--", "c")
    assert refused.returncode == 2
    assert f"run {failed} is failed" in refused.stderr
    user.done(user.submit("says.py", *CPU, "--after", f"notok:{failed}", "--", "c"))


def test_after_a_sweep_of_which_a_part_has_ended_only_the_rest_is_named(user):
    sweep = submit_sweep(user, "--sweep", "args=[a],[wait]")
    done, waits = sweep.runs()
    user.done(done)
    user.wait_for_line(waits, "says wait")
    for kind, names in (("ok", job_id(waits)), ("notok:", None)):
        if names is None:
            refused = user("submit", "says.py", *CPU, "--after", f"{kind}{sweep.id}", "--", "b")
            assert f"run {done.id} is done, and the new run needs it failed" in refused.stderr
            continue
        after = user.submit("says.py", *CPU, "--after", f"{kind}:{sweep.id}", "--", "b")
        script = after.script_file.read_text()
        assert re.search(r"--dependency=(\S+)", script)[1] == f"afterok:{names}"
    user.write("gate", "")
    user.done(after)


def test_a_run_here_does_not_wait_for_one_on_the_cluster(user):
    run = user.submit("says.py", *CPU, "--", "wait")
    refused = user("submit", "says.py", "--local", "--after", run.id, "--", "b")
    assert refused.returncode == 2
    assert "is active on slurm, and the new run is for local" in refused.stderr
    user("cancel", run.id)


def test_a_run_by_itself_may_have_its_summary_written(user):
    run = user.submit("says.py", *CPU, "--summary-after", "--", "a")
    user.cluster.wait_for((run.path / "summary.txt").exists)
    assert run.id in (run.path / "summary.txt").read_text()
    user.cluster.wait_until_idle()


def test_a_sweep_whose_submission_was_killed_is_found_by_its_jobs(user):
    sweep = submit_sweep(user, "--sweep", "args=[wait]", "--repeat", "2")
    runs = sweep.runs()
    for run in runs:
        user.wait_for_line(run, "says wait")
        run.submission_file.unlink()  # as if it had been killed right after sbatch
    described = json.loads(user("status", sweep.id, "--json").stdout)
    assert [run["state"] for run in described] == ["running", "running"]
    user("cancel", sweep.id)
    assert not user.cluster.queue()
