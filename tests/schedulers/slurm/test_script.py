"""The batch script: every directive, and what it quotes."""

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from hpcdist.base.errors import RunDirectoryError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import Launch, Resources, ScriptJob
from hpcdist.schedulers.base import Dependency, Target
from hpcdist.schedulers.slurm.site import slurm_time
from hpcdist.schedulers.slurm.slurm import scheduler

GOLDEN = Path(__file__).parent / "golden"


def job(*, launch=None, **resources):
    return ScriptJob(
        name="train",
        script="/home/ann/train.py",
        resources=Resources(**resources),
        launch=Launch(**(launch or {})),
    )


def target(**options):
    folder = Path("/scratch/ann/runs/RUN")
    return Target(name="RUN", folder=folder, cwd="/home/ann/project", **options)


CASES = {
    "plain": (job(), ClusterProfile(), target()),
    "gpus": (
        job(nodes=2, gpus=4, cpus_per_gpu=8, mem_gb=64, time_limit_min=90),
        ClusterProfile(partition="gpu", account="ml-course", qos="high", constraint="a100|h100"),
        target(),
    ),
    "gres": (
        job(nodes=2, gpus=2),
        ClusterProfile(
            gpu_request="gres", gpu_type="v100", cpus_per_gpu=6, mem_gb=32.5, time_limit_min=1440
        ),
        target(),
    ),
    "cpus": (
        job(gpus=4, launch={"device": "cpu", "requeue": False}),
        ClusterProfile(gpu_request="none"),
        target(),
    ),
    "site": (
        job(gpus=2),
        ClusterProfile(
            setup=["module purge", "module load cuda/12.4", "source ~/venv/bin/activate"],
            environment={"HF_HOME": "/scratch/ann/it's here", "NCCL_DEBUG": "WARN"},
            directives=["--exclusive", "--exclude=n[1-3]"],
            python="/opt/python3.12/bin/python",
        ),
        target(),
    ),
    "array": (
        job(),
        ClusterProfile(),
        target(
            array_size=20,
            max_parallel=4,
            dependencies=[
                Dependency(kind="afterok", job_ids=["11", "12_3"]),
                Dependency(kind="afterany", job_ids=["14"]),
            ],
        ),
    ),
}


def directives(spec, cluster):
    return [one.line for one in scheduler.directives(spec, cluster, target())]


def script(case):
    spec, cluster, where = CASES[case]
    cluster = msgspec.structs.replace(cluster, python=cluster.python or "/opt/venv/bin/python")
    return scheduler.render(spec, where, scheduler.plan(spec, cluster))


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch, tmp_path):
    """What is rendered is the same where Slurm is and where it is not."""
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize("case", CASES)
def test_the_script_is_the_golden_one(case):
    assert script(case) == (GOLDEN / f"{case}.sh").read_text()


SHELLCHECK = shutil.which("shellcheck")


@pytest.mark.parametrize("case", [case for case in CASES if case != "site"])
def test_the_script_is_clean(case, tmp_path, missing):
    if SHELLCHECK is None:
        missing("shellcheck is not installed")
    file = tmp_path / "script.sh"
    file.write_text(script(case))
    done = subprocess.run([SHELLCHECK, file], capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize("sign", ["%", "\\", "\n"])
def test_a_folder_that_slurm_would_take_for_a_pattern_is_refused(sign):
    where = msgspec.structs.replace(target(), folder=Path(f"/scratch/a{sign}b/RUN"))
    spec = job()
    with pytest.raises(RunDirectoryError, match="pattern"):
        scheduler.render(spec, where, scheduler.plan(spec, ClusterProfile()))


def test_a_job_says_more_than_a_profile_and_a_profile_more_than_nothing():
    cluster = ClusterProfile(cpus_per_gpu=4, mem_gb=10, time_limit_min=60)
    said = directives(job(gpus=2, cpus_per_gpu=8, mem_gb=20, time_limit_min=30), cluster)
    assert {"--cpus-per-task=16", "--mem=19074M", "--time=0-00:30:00"} <= set(said)
    said = directives(job(gpus=2), cluster)
    assert {"--cpus-per-task=8", "--mem=9537M", "--time=0-01:00:00"} <= set(said)
    said = directives(job(gpus=2), ClusterProfile())
    assert "--cpus-per-task=2" in said
    assert not [option for option in said if option.startswith(("--mem", "--time"))]


@pytest.mark.parametrize(
    ("minutes", "text"),
    [(1, "0-00:01:00"), (0.01, "0-00:00:01"), (90.5, "0-01:30:30"), (60 * 24 * 8, "8-00:00:00")],
)
def test_a_duration_is_written_as_sbatch_reads_it(minutes, text):
    assert slurm_time(minutes) == text


@pytest.mark.parametrize(("limit_min", "seconds"), [(None, 120), (60, 120), (4, 60), (1, 15)])
def test_the_warning_leaves_a_short_job_three_quarters_of_its_time(limit_min, seconds):
    asked = directives(job(time_limit_min=limit_min), ClusterProfile())
    assert f"--signal=USR2@{seconds}" in asked
