"""The scripts of Slurm, LSF and PBS: all options that are asked for, each with its reason, and one
whole script of each. `asked/` has the options of all cases, and the whole scripts."""

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from script_jobs import job, target

from hpcdist.base.errors import ProfileError, RunDirectoryError
from hpcdist.cluster.profile import ClusterProfile, LsfOptions
from hpcdist.schedulers import load_scheduler
from hpcdist.schedulers.base import Dependency

ASKED = Path(__file__).parent / "asked"
SHELLCHECK = shutil.which("shellcheck")


def after(**kinds):
    dependencies = [Dependency(kind=kind, job_ids=ids.split()) for kind, ids in kinds.items()]
    return target(array_size=20, max_parallel=4, dependencies=dependencies)


ON_CPUS = job(nodes=2, gpus=4, launch={"device": "cpu", "requeue": False})
LARGE = job(nodes=2, gpus=4, cpus_per_gpu=8, mem_gb=64, time_limit_min=90.5)
SITE = {
    "setup": ["module purge", "module load cuda/12.4", "source ~/venv/bin/activate"],
    "environment": {"HF_HOME": "/scratch/ann/it's here", "NCCL_DEBUG": "WARN"},
    "notify": ["mail:ann@example.org"],
    "time_limit_min": 1440,
    "mem_gb": 32.5,
    "cpus_per_gpu": 6,
}
SLURMS = {"qos": "high", "constraint": "a100|h100"}
OVERRULED = {"cpus_per_gpu": 4, "mem_gb": 10, "time_limit_min": 60}
"""Of a profile, where the job says other numbers."""
CASES = {
    "slurm": {
        "nothing-said": (job(), {}, target()),
        "site": (job(gpus=2), {**SITE, "directives": ["--exclude=n[1-3]"]}, target()),
        "gpus": (
            LARGE,
            {**OVERRULED, **SLURMS, "partition": "gpu", "account": "ml-course"},
            target(),
        ),
        "gres": (job(gpus=2), {"gpu_request": "gres", "gpu_type": "v100"}, target()),
        "cpus": (ON_CPUS, {}, target()),
        "array": (job(), {"gpu_request": "none"}, after(afterok="11 12_3", afterany="14")),
    },
    "lsf": {
        "nothing-said": (job(), {}, target()),
        "site": (job(gpus=2), {**SITE, "directives": ["-x"]}, target()),
        "gpus": (LARGE, {**OVERRULED, "partition": "gpuv100", "account": "ml-course"}, target()),
        "gpus-of-the-queue": (job(gpus=2), {"lsf": {"gpu": None}}, target()),
        "memory-per-host": (job(nodes=2, mem_gb=10), {"lsf": {"mem_per": "host"}}, target()),
        "a-type-of-gpu": (job(), {"gpu_type": "A100", "constraint": "gpu40gb && !bad"}, target()),
        "array": (
            job(),
            {"gpu_request": "none"},
            after(afterok="11 12[3]", afterany="14 JOBID-of-a_1"),
        ),
    },
    "pbs": {
        "nothing-said": (job(), {}, target()),
        "site": (job(gpus=2), {**SITE, "directives": ["-l software=x", "-W umask=022"]}, target()),
        "gpus": (
            LARGE,
            {**OVERRULED, "partition": "gpuq", "account": "ml", "constraint": "a=1"},
            target(),
        ),
        "after": (job(), {"gpu_request": "none"}, after(afterok="11", afterany="14 15")),
    },
}
ALL = [(scheduler, case) for scheduler, cases in CASES.items() for case in cases]


def planned(name, case):
    spec, values, where = CASES[name][case]
    lsf = LsfOptions(**values.get("lsf", {}))
    cluster = ClusterProfile(scheduler=name, python="/opt/my venv/bin/python")
    return spec, msgspec.structs.replace(cluster, **values | {"lsf": lsf}), where


def script(name, case):
    spec, cluster, where = planned(name, case)
    scheduler = load_scheduler(name)
    return scheduler.render(spec, where, scheduler.plan(spec, cluster))


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch, tmp_path):
    """Scripts are the same where the scheduler is and where it is not."""
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(("name", "case"), ALL)
def test_the_options_are_those_that_are_written_down_each_with_its_reason(name, case):
    written = (ASKED / f"{name}.txt").read_text().partition(f"== {case}\n")[2].partition("== ")[0]
    found = load_scheduler(name).directives(*planned(name, case))
    assert "".join(f"{one.line}  # {one.why} {list(one.keys)}\n" for one in found) == written


@pytest.mark.parametrize("name", CASES)
def test_the_whole_script_is_the_one_that_is_written_down_and_clean(name, tmp_path, missing):
    text = script(name, "site")
    assert text == (ASKED / f"{name}.sh").read_text()
    if SHELLCHECK is None:
        missing("shellcheck is not installed")
    (tmp_path / "script.sh").write_text(text)
    # What is sourced is not there to be read, and a trap calls what seems unreachable.
    words = [SHELLCHECK, "--exclude=SC1090,SC1091,SC2317", tmp_path / "script.sh"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize("sign", ':,^%\\\n"')
def test_a_folder_that_a_scheduler_would_take_for_a_pattern_is_refused(sign):
    spec, cluster, where = planned("slurm", "nothing-said")
    scheduler = load_scheduler("slurm")
    elsewhere = msgspec.structs.replace(where, folder=Path(f"/scratch/a{sign}b/RUN"))
    with pytest.raises(RunDirectoryError, match="pattern"):
        scheduler.render(spec, elsewhere, scheduler.plan(spec, cluster))


@pytest.mark.parametrize(
    ("name", "directive"),
    [("slurm", "--nodes=3"), ("lsf", "-q gpu"), ("pbs", "-l walltime=1:00"), ("pbs", "-lselect=4")],
)
def test_an_option_that_hpcdist_sets_itself_is_refused(name, directive):
    scheduler = load_scheduler(name)
    cluster = ClusterProfile(scheduler=name, partition="normal", directives=[directive])
    spec = job(nodes=2, time_limit_min=60)
    with pytest.raises(ProfileError, match=f'directives has "{directive}", which hpcdist sets'):
        scheduler.render(spec, target(), scheduler.plan(spec, cluster))
