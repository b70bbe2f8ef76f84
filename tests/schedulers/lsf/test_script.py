"""The whole batch script: what it asks for, what it runs first, and what it starts where."""

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import Launch, Resources, ScriptJob
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.schedulers.base import Dependency, Target
from hpcdist.schedulers.lsf.lsf import scheduler

GOLDEN = Path(__file__).parent / "golden"


def job(*, device="auto", **resources):
    return ScriptJob(
        name="train",
        script="/home/ann/train.py",
        resources=Resources(**resources),
        launch=Launch(device=device),
    )


def target(**options):
    folder = Path("/scratch/ann/my runs/RUN")
    environment = {"HPCDIST_SUBMIT_DIR": "/home/ann/project"}
    return Target(
        name="RUN", folder=folder, cwd="/home/ann/project", environment=environment, **options
    )


CASES = {
    "gpus": (
        job(nodes=2, gpus=2),
        ClusterProfile(
            partition="gpuv100",
            cpus_per_gpu=4,
            time_limit_min=1440,
            setup=["module load cuda/12.4", "source ~/venv/bin/activate"],
            environment={"HF_HOME": "/scratch/ann/it's here"},
        ),
        target(),
    ),
    "array": (
        job(device="cpu"),
        ClusterProfile(gpu_request="none"),
        target(
            array_size=20,
            max_parallel=4,
            dependencies=[
                Dependency(kind="afterok", job_ids=["11", "12[3]"]),
                Dependency(kind="afterany", job_ids=["14"]),
            ],
        ),
    ),
}


def script(case):
    spec, cluster, where = CASES[case]
    cluster = msgspec.structs.replace(cluster, python="/opt/my venv/bin/python")
    return scheduler.render(spec, where, scheduler.plan(spec, cluster))


@pytest.fixture(autouse=True)
def no_lsf(monkeypatch, tmp_path):
    """What is rendered is the same where LSF is and where it is not."""
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize("case", CASES)
def test_the_script_is_the_golden_one(case):
    assert script(case) == (GOLDEN / f"{case}.sh").read_text()


SHELLCHECK = shutil.which("shellcheck")


@pytest.mark.parametrize("case", CASES)
def test_the_script_is_clean(case, tmp_path, missing):
    if SHELLCHECK is None:
        missing("shellcheck is not installed")
    file = tmp_path / "script.sh"
    file.write_text(script(case))
    # SC1090: what the profile's own line sources is not there to be read.
    done = subprocess.run(
        [SHELLCHECK, "--exclude=SC1090", file], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""


def test_a_command_within_a_job_is_a_program_without_arguments_for_battach(tmp_path):
    run = Run(tmp_path / "run")
    run.make()
    run.write_submission(Submission(scheduler="lsf", job_id="77[3]"))
    with pytest.raises(SchedulerError, match="LSF has no command that enters") as raised:
        scheduler.enter(run, "hostB", ["ps", "-x"], is_terminal=True)
    assert "ssh hostB -t" in raised.value.hint
    (tmp_path / "battach").write_text("#!/bin/sh\n")
    (tmp_path / "battach").chmod(0o755)
    command = ["/bin/sh", "-c", 'echo "$0" $((40 + 2))', "a b's"]
    program, *options, script, job_id = scheduler.enter(run, "hostB", command, is_terminal=True)
    assert (program, options, job_id) == ("battach", ["-m", "hostB", "-L"], "77[3]")
    assert subprocess.run([script], capture_output=True, check=True).stdout == b"a b's 42\n"
    assert not Path(script).exists()
