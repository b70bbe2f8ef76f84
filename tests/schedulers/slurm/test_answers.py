"""What squeue, sacct and sinfo say, read."""

from pathlib import Path

import pytest

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import Resources, ScriptJob
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.schedulers.base import Target
from hpcdist.schedulers.batch import JobIndex
from hpcdist.schedulers.slurm.slurm import (
    parse_books,
    parse_queue,
    parse_sinfo,
    plain_reason,
    scheduler,
)

QUEUE = """\
101|RUNNING|None|ddp-20261121-133600-abcd
102|PENDING|(ReqNodeNotAvail, UnavailableNodes:n[3-4])|ddp|with|bars
103_7|PENDING|JobArrayTaskLimit|sweep-x
104|TIMEOUT|TimeLimit|late
garbage
"""


def test_a_queue_is_read_line_by_line():
    running, waiting, element, late = parse_queue(QUEUE)
    assert running.state == "running"
    assert waiting.name == "ddp|with|bars"
    assert waiting.state == "pending"
    assert "perhaps for maintenance: n[3-4] (ReqNodeNotAvail)" in waiting.reason
    assert element.id == "103_7"
    assert late.state == "failed"
    assert late.reason == "Slurm says TIMEOUT"


def book(job_id, state, name, reason="None"):
    return "|".join([job_id, state, reason, "0:0", *["Unknown"] * 4, "0", "n1", "", name])


def test_accounting_tells_a_job_from_a_former_one_with_its_id():
    lines = [
        book("7", "FAILED", "old"),
        book("7", "CANCELLED by 1000", "new"),
        book("8_1", "NODE_FAIL", "array"),
        book("8_1", "COMPLETED", "array"),
    ]
    known = JobIndex(parse_books("\n".join(lines)))

    def find(job_id, name):
        return known.find(Run(Path(name)), Submission(job_id=job_id, job_name=name))

    assert find("7", "new").state == "cancelled"
    assert find("7", "old").state == "failed"
    assert find("8_1", "array").word == "COMPLETED"  # the last of its lives
    assert find("7", "other") is None


def test_a_suspended_job_says_what_it_waits_for():
    (job,) = parse_queue("1|SUSPENDED|None|x\n")
    assert (job.state, job.is_suspended) == ("running", True)
    assert job.reason.startswith("Slurm has suspended it")


def test_an_unknown_state_counts_as_running_and_not_as_ended():
    (job,) = parse_queue("1|NEW_STATE|None|x\n")
    assert job.state == "running"


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("Resources", "waits for nodes"),
        ("(Priority)", "other jobs come before"),
        ("None", "has not looked at it yet"),
        ("SomethingNew", "SomethingNew"),
        ("", "None"),
    ],
)
def test_reasons_are_told_in_plain_words(code, part):
    assert part in plain_reason(code)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("infinite", None),
        ("n/a", None),
        ("1-00:00:00", 1440),
        ("2:00:00", 120),
        ("10:30", 10.5),
        ("1-12", 2160),
    ],
)
def test_limits_are_read_as_slurm_prints_them(text, minutes):
    (partition,) = parse_sinfo(f"main*|4|8|1000|(null)|{text}|up\n")
    assert partition.time_limit_min == minutes


def test_variables_that_would_change_the_job_unseen_are_left_out():
    before = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_NTASKS": "4",
        "SBATCH_PARTITION": "mine",
        "SBATCH_ACCOUNT": "mine",
        "SBATCH_JOB_NAME": "mine",
        "SBATCH_TIMELIMIT": "5",
        "SBATCH_REQUEUE": "1",
        "SBATCH_ARRAY_INX": "0-1",
        "SBATCH_WAIT": "1",
        "SBATCH_MEM_PER_CPU": "5G",
        "SBATCH_GRES": "gpu:8",
    }
    target = Target(name="x", folder=Path("x"), cwd="/")
    expected = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf"}
    assert scheduler.environment(before, target, "") == expected


@pytest.mark.parametrize(("limit_min", "seconds"), [(None, 120), (60, 120), (4, 60), (1, 15)])
def test_the_warning_leaves_a_short_job_three_quarters_of_its_time(limit_min, seconds):
    job = ScriptJob(name="j", script="x.py", resources=Resources(time_limit_min=limit_min))
    asked = scheduler.directives(job, ClusterProfile(), Target(name="x", folder=Path("x"), cwd="/"))
    assert f"--signal=USR2@{seconds}" in [one.line for one in asked]
