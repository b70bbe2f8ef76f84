"""What squeue, sacct and sinfo say, as values. The lines are those of Slurm 22.05.8 but for the
names."""

import os
import time
from pathlib import Path

import pytest

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import Resources, ScriptJob
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.base import Target
from hpcdist.schedulers.batch import JobIndex
from hpcdist.schedulers.slurm.nodes import expand_nodes
from hpcdist.schedulers.slurm.slurm import (
    parse_books,
    parse_queue,
    parse_size,
    scheduler,
)


@pytest.mark.parametrize(
    ("line", "name", "state", "reason"),
    [
        ("101|RUNNING|None|ddp-20261121-133600-abcd", "ddp-20261121-133600-abcd", "running", ""),
        (
            "1|PENDING|(ReqNodeNotAvail, UnavailableNodes:n[3-4])|a|b",
            "a|b",
            "pending",
            "n[3-4] (Req",
        ),
        ("103_7|PENDING|(Resources)|sweep-x", "sweep-x", "pending", "waits for nodes"),
        ("1|PENDING|QOSMaxJobsPerUserLimit|x", "x", "pending", "a limit of your account"),
        ("1|PENDING|SomethingNew|x", "x", "pending", "SomethingNew"),
        ("104|TIMEOUT|TimeLimit|late", "late", "failed", "Slurm says TIMEOUT"),
        ("1|NEW_STATE|None|x", "x", "running", ""),  # and not as ended
        ("1|SUSPENDED|None|x", "x", "running", "Slurm has suspended it"),
    ],
)
def test_a_queue_is_read_line_by_line(line, name, state, reason):
    (job,) = parse_queue(f"{line}\ngarbage\n")
    assert (job.id, job.name, job.state) == (line.partition("|")[0], name, state)
    assert reason in (job.reason or "")
    assert job.is_suspended == ("SUSPENDED" in line)


def stamp(second):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1.7e9 + second))


def line(job_id, name, *, times=(0, 0, 10, 70), nodes="n[1-2]", state="COMPLETED", **cells):
    moments = ["Unknown" if at is None else stamp(at) for at in times]
    elapsed = 0 if None in times[2:] else times[3] - times[2]
    code, rss = cells.get("code", "0:0"), cells.get("rss", "")
    return "|".join([job_id, state, "None", code, *moments, str(elapsed), nodes, rss, name])


def test_accounting_sums_up_the_lives_of_a_job_and_tells_it_from_a_former_one_with_its_id():
    lines = [
        line("7", "old", state="FAILED", nodes="None assigned"),
        line("7", "ddp|odd", times=(0, 0, 10, 70), state="REQUEUED", nodes="n1"),
        line("7.0", "python", rss="300.5M"),
        line("7", "ddp|odd", times=(70, 190, 200, 300), state="CANCELLED by 1000", code="0:15"),
        line("7.batch", "batch", rss="5000K", nodes="n1"),
        line("8", "waits", times=(0, 0, None, None), nodes="None assigned", state="PENDING"),
        line("9_3", "runs", times=(0, 0, 10, None), state="RUNNING"),
        *("", "sacct: error: something", "7|COMPLETED"),  # of another form
    ]
    known = JobIndex(parse_books("\n".join(lines) + "\n"))

    def find(job_id, name):
        return known.find(Run(Path(name)), Submission(job_id=job_id, job_name=name))

    job, waits, runs = find("7", "ddp|odd"), find("8", "waits"), find("9_3", "runs")
    assert (job.state, job.word, job.exit_code) == ("cancelled", "CANCELLED", 0)
    assert (job.queue_wait_s, job.elapsed_s, job.nodes) == (20, 160, ["n1", "n2"])
    assert job.max_rss_bytes == int(300.5 * 2**20)  # the largest of its steps
    assert (find("7", "old").state, find("7", "old").max_rss_bytes) == ("failed", None)
    assert find("7", "other") is None
    assert (waits.queue_wait_s, waits.elapsed_s) == (None, None)
    assert (waits.nodes, waits.exit_code) == ([], None)
    assert (runs.queue_wait_s, runs.exit_code) == (10, None)


def test_all_jobs_of_a_run_are_found_which_are_to_be_cancelled():
    known = JobIndex(parse_queue("7|PENDING|None|new\n9|RUNNING|None|new\n8|RUNNING|None|x\n"))
    found = known.find_all(Run(Path("new")), Submission(job_id="7", job_name="new"))
    assert {job.id for job in found} == {"7", "9"}


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (expand_nodes, "n[08-10,12],m1", ["n08", "n09", "n10", "n12", "m1"]),
        (expand_nodes, "", []),
        (expand_nodes, "n[1-9999999999]", ["n1-9999999999"]),  # does not fill the memory
        (parse_size, "1234K", 1234 * 2**10),
        (parse_size, "512 Mbytes", 2**29),
        (parse_size, "", None),
    ],
)
def test_node_lists_and_sizes_are_read(read, text, expected):
    assert read(text) == expected


def test_variables_that_would_change_the_job_unseen_are_left_out():
    kept = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf"}
    names = ("PARTITION", "ACCOUNT", "JOB_NAME", "TIMELIMIT", "REQUEUE", "ARRAY_INX", "WAIT")
    dropped = {f"SBATCH_{name}": "1" for name in (*names, "MEM_PER_CPU", "GRES")}
    target = Target(name="x", folder=Path("x"), cwd="/")
    assert scheduler.environment(kept | dropped | {"SLURM_NTASKS": "4"}, target, "") == kept


@pytest.mark.parametrize(("limit_min", "seconds"), [(None, 120), (60, 120), (4, 60)])
def test_the_warning_leaves_a_short_job_three_quarters_of_its_time(limit_min, seconds):
    job = ScriptJob(name="j", script="x.py", resources=Resources(time_limit_min=limit_min))
    asked = scheduler.directives(job, ClusterProfile(), Target(name="x", folder=Path("x"), cwd="/"))
    assert f"--signal=USR2@{seconds}" in [one.line for one in asked]


def test_nodes_are_left_out_though_the_end_of_the_job_ends_the_command(tmp_path, monkeypatch):
    """What runs at the requeue gets the SIGTERM that is for the job."""
    words = tmp_path / "words"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        f"#!/bin/sh\necho $1 $2 $3 >> {words}\n"
        f"[ $1 != update ] || [ $(grep -c update {words}) -gt 1 ] || kill $$\n"
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    run = Run(tmp_path / "run")
    run.attempt_file(0, "").mkdir(parents=True)
    run.write_attempt_verdict(
        Verdict(kind="launch", message="slow", attempt=0, left_out={"n2": "slow"})
    )
    assert scheduler.requeue(run) == "the job starts again without n2"
    told = "update JobId=7 ExcNodeList=n2"
    assert words.read_text().splitlines()[1:] == ["requeue 7", told, told]
