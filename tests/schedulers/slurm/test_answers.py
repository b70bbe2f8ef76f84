"""What squeue, sacct and sinfo say, read."""

import time
from pathlib import Path

import pytest

from hpcdist.base.errors import JobError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import Launch, Resources, ScriptJob
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.schedulers.base import Target
from hpcdist.schedulers.batch import JobIndex
from hpcdist.schedulers.slurm.site import check_capacity, parse_nodes, parse_setting
from hpcdist.schedulers.slurm.slurm import parse_books, parse_queue, plain_reason, scheduler

QUEUE = """\
101|RUNNING|None|2026-11-21T13:36:39|ddp-20261121-133600-abcd
102|PENDING|(ReqNodeNotAvail, UnavailableNodes:n[3-4])|N/A|ddp|with|bars
103_7|PENDING|JobArrayTaskLimit|2026-11-21T14:00:00|sweep-x
104|TIMEOUT|TimeLimit|2026-11-21T12:00:00|late
garbage
"""


def test_a_queue_is_read_line_by_line():
    running, waiting, element, late = parse_queue(QUEUE)
    assert running.condition().state == "running"
    assert waiting.name == "ddp|with|bars"
    condition = waiting.condition()
    assert condition.state == "pending"
    assert condition.expected_start_s is None
    assert "perhaps for maintenance: n[3-4] (ReqNodeNotAvail)" in condition.reason
    assert element.id == "103_7"
    start = time.mktime(time.strptime("2026-11-21 14:00", "%Y-%m-%d %H:%M"))
    assert element.condition().expected_start_s == start
    assert late.condition().state == "failed"
    assert late.condition().reason == "Slurm says TIMEOUT"


def book(job_id, state, name, reason="None"):
    return "|".join([job_id, state, reason, "0:0", *["Unknown"] * 4, "0", "n1", "", "0", name])


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


def test_accounting_tells_of_several_elements_of_an_array_in_one_line():
    line = book("7_[1,3-5%2]", "CANCELLED by 0", "sweep", "JobArrayTaskLimit")
    jobs = parse_books(f"{line}\n{book('7_2', 'RUNNING', 's')}\n")
    assert [job.id for job in jobs] == ["7_1", "7_3", "7_4", "7_5", "7_2"]
    assert jobs[3].state == "cancelled"


def test_a_suspended_job_says_what_it_waits_for():
    (job,) = parse_queue("1|SUSPENDED|None|2026-11-21T13:36:39|x\n")
    assert (job.condition().state, job.condition().is_suspended) == ("running", True)
    assert job.condition().reason.startswith("Slurm has suspended it")


def test_the_name_of_the_cluster_is_read_as_scontrol_prints_it():
    text = "CliFilterPlugins = (null)\nClusterName             = lab-2\nNextJobId = 7\n"
    assert parse_setting(text, "ClusterName") == "lab-2"
    assert parse_setting("slurm_load_ctl_conf error\n", "ClusterName") is None


def test_an_unknown_state_counts_as_running_and_not_as_ended():
    (job,) = parse_queue("1|NEW_STATE|None|N/A|x\n")
    assert job.condition().state == "running"


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
    (group,) = parse_nodes(f"main*|4|8|1000|(null)|{text}|up\n")
    assert group.limit_min == minutes


NODES = """\
main*|4|8|1000|gpu:2|infinite|up
short|2|8|1000|(null)|1:00:00|up
mixed|3|32+|1000|gpu:a100:4(S:0-1)|1-00:00:00|up
mixed|1|64|1000|gpu:v100:8|1-00:00:00|up
"""


def capacity(*, device="auto", cluster=None, **resources):
    job = ScriptJob(
        name="x",
        script="/x.py",
        resources=Resources(**resources),
        launch=Launch(device=device),
    )
    check_capacity(job, ClusterProfile(**(cluster or {})), parse_nodes(NODES))


@pytest.mark.parametrize(
    "options",
    [
        {"nodes": 4, "gpus": 2},
        {"nodes": 2, "gpus": 4, "device": "cpu", "cluster": {"partition": "short"}},
        {"nodes": 2, "cluster": {"partition": "short", "gpu_request": "none"}},
        {"nodes": 4, "gpus": 4, "cluster": {"partition": "mixed"}},
        {"nodes": 1, "gpus": 8, "cluster": {"partition": "mixed", "gpu_type": "v100"}},
        {"nodes": 99, "cluster": {"partition": "that sbatch will refuse"}},
    ],
)
def test_what_a_partition_has_is_let_through(options):
    capacity(**options)


@pytest.mark.parametrize(
    ("options", "begin", "part"),
    [
        ({"nodes": 5}, "resources.nodes is 5", "partition main has 4"),
        ({"gpus": 3}, "resources.gpus is 3", "2 at most on a node"),
        ({"gpus": 9, "device": "cpu"}, "resources.gpus is 9, which takes 9 CPUs", "8 at most"),
        ({"gpus": 2, "cpus_per_gpu": 5}, "resources.gpus is 2", "which takes 10 CPUs per node"),
        ({"cluster": {"partition": "short"}}, "resources.gpus is 1", "0 at most on a node"),
        ({"mem_gb": 1e6}, "resources.mem_gb is 1e+06", "partition main has 0 nodes"),
        (
            {"nodes": 4, "gpus": 4, "cluster": {"partition": "mixed", "gpu_type": "a100"}},
            "resources.gpus is 4",
            "has 3 nodes with so many GPUs",
        ),
        (
            {"time_limit_min": 61, "device": "cpu", "cluster": {"partition": "short"}},
            "resources.time_limit_min is 61",
            "allows 60 minutes",
        ),
    ],
)
def test_what_a_partition_can_never_give_is_refused(options, begin, part):
    with pytest.raises(JobError) as caught:
        capacity(**options)
    assert caught.value.message.startswith(begin)
    assert part in caught.value.message
    assert caught.value.hint


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
    given = ("job-name=x", "mem=4M", "gpus-per-node=2", "partition=gpu", "time=1-00:00:00")
    script = "".join(f"#SBATCH --{option}\n" for option in given)
    target = Target(name="x", folder=Path("x"), cwd="/")
    assert scheduler.environment(before, target, script) == {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SBATCH_ACCOUNT": "mine",
    }


@pytest.mark.parametrize(("limit_min", "seconds"), [(None, 120), (60, 120), (4, 60), (1, 15)])
def test_the_warning_leaves_a_short_job_three_quarters_of_its_time(limit_min, seconds):
    job = ScriptJob(name="j", script="x.py", resources=Resources(time_limit_min=limit_min))
    asked = scheduler.directives(job, ClusterProfile(), Target(name="x", folder=Path("x"), cwd="/"))
    assert f"--signal=USR2@{seconds}" in [one.line for one in asked]
