"""Directives of bsub where sites differ, and requests that it cannot be given."""

import subprocess
from pathlib import Path

import pytest

from hpcdist.base.errors import ProfileError, SchedulerError
from hpcdist.base.files import shipped_folder
from hpcdist.cluster.load import load_profile
from hpcdist.cluster.profile import LSF_OPTIONS, ClusterProfile, LsfOptions
from hpcdist.job.spec import Launch, Resources, ScriptJob
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.schedulers.base import Dependency, Target
from hpcdist.schedulers.lsf.lsf import scheduler


def directives(spec, cluster, where):
    return [one.line for one in scheduler.directives(spec, cluster, where)]


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


def profile(*, lsf=None, **values):
    return ClusterProfile(scheduler="lsf", lsf=LsfOptions(**(lsf or {})), **values)


def allowing(*names, without=()):
    return {"options": [*(name for name in LSF_OPTIONS if name not in without), *names]}


@pytest.mark.parametrize(
    ("mem_per", "unit", "text"),
    [
        ("slot", "suffix", "1250MB"),
        ("slot", "KB", "1250000"),
        ("slot", "MB", "1250"),
        ("slot", "GB", "2"),
        ("host", "suffix", "10000MB"),
        ("host", "KB", "10000000"),
        ("host", "MB", "10000"),
        ("host", "GB", "10"),
        ("job", "suffix", "20000MB"),
        ("job", "KB", "20000000"),
        ("job", "MB", "20000"),
        ("job", "GB", "20"),
    ],
)
def test_memory_is_asked_for_as_the_site_counts_it(mem_per, unit, text):
    spec = job(nodes=2, gpus=2, cpus_per_gpu=4, mem_gb=10)
    cluster = profile(lsf={"mem_per": mem_per, "mem_unit": unit})
    assert f'-R "span[ptile=8] rusage[mem={text}]"' in directives(spec, cluster, target())


@pytest.mark.parametrize(
    ("mem_gb", "slots", "text"), [(10, 3, "3334MB"), (1.1, 1, "1100MB"), (0.3, 3, "100MB")]
)
def test_memory_is_rounded_up_and_never_by_noise(mem_gb, slots, text):
    asked = directives(job(cpus_per_gpu=slots, mem_gb=mem_gb), profile(), target())
    assert f"rusage[mem={text}]" in "\n".join(asked)


NEEDED = {
    "-J": (job(), profile(lsf=allowing(without=["-J"])), target()),
    "-q": (job(), profile(partition="gpu", lsf=allowing(without=["-q"])), target()),
    "-P": (job(), profile(account="p", lsf=allowing(without=["-P"])), target()),
    "-n": (job(), profile(lsf=allowing(without=["-n"])), target()),
    "-R": (job(nodes=2), profile(lsf=allowing(without=["-R"])), target()),
    "-gpu": (job(), profile(lsf=allowing(without=["-gpu"])), target()),
    "-W": (job(time_limit_min=5), profile(lsf=allowing(without=["-W"])), target()),
    "-o": (job(), profile(lsf=allowing(without=["-o"])), target()),
    "-w": (
        job(),
        profile(lsf=allowing(without=["-w"])),
        target(dependencies=[Dependency(kind="afterok", job_ids=["1"])]),
    ),
}


@pytest.mark.parametrize("option", NEEDED)
def test_an_option_that_is_needed_and_not_allowed_is_told(option):
    with pytest.raises(ProfileError, match=f"lsf.options does not list {option}, ") as caught:
        directives(*NEEDED[option])
    assert f"add {option} to lsf.options" in caught.value.hint


def test_an_option_that_is_not_needed_is_left_out_where_it_is_not_allowed():
    waiting = target(dependencies=[Dependency(kind="afterok", job_ids=["1"])])
    with_all = directives(job(), profile(lsf=allowing("-ti")), waiting)
    with_few = directives(job(), profile(lsf=allowing(without=["-r"])), waiting)
    assert '-w "done(1)" -ti' in with_all
    assert "-r" in with_all
    assert '-w "done(1)"' in with_few
    assert "-r" not in with_few


def test_a_requirement_of_the_directives_alone_needs_no_permission():
    cluster = profile(lsf=allowing(without=["-R"]), directives=["-R fast"])
    assert '-R "select[fast]"' in directives(job(), cluster, target())


@pytest.mark.parametrize(
    ("cluster", "message", "hint"),
    [
        (profile(gpu_request="gres"), "gpu_request is gres", "lsf.gpu"),
        (profile(qos="high"), "words of Slurm's", "-sla NAME"),
        (
            profile(gpu_type="a100", lsf={"gpu_rusage": "ngpus_excl_p={gpus}"}),
            "gpu_type is a100, for which lsf.gpu_rusage (ngpus_excl_p={gpus}) has no place",
            "leave gpu_type out",
        ),
        (profile(gpu_type="a100", lsf={"gpu": None}), "lsf.gpu (null) has no place", ""),
        (profile(gpu_type="a", lsf={"gpu": "num={gpus}:gmodel=b"}), "has no place", "gmodel="),
        *(
            (profile(directives=[line]), f"directives has {line}, which hpcdist sets", "--wait")
            for line in ("-q gpu", "-W 60", "-W60", "-gpu num=2", "-n4", "-K", "-Is", "-nnodes 2")
        ),
        (profile(directives=["-R span[ptile=1]"]), "does not go together", "--nodes"),
        (profile(directives=["-R x[1]"]), "does not go together", "one plain string"),
        (profile(directives=['-R "2*{select[a]}"']), "does not go together", "one plain string"),
        (profile(directives=['-R "rusage[a=1||b=1]"']), "does not go together", "one plain"),
        (profile(directives=['-R "cu[a] cu[b]"']), "does not go together", "each section once"),
        (profile(account='a"b'), 'a"b cannot stand in a #BSUB line', "double quotes"),
    ],
)
def test_what_lsf_cannot_be_asked_for_is_told(cluster, message, hint):
    with pytest.raises(ProfileError) as caught:
        directives(job(), cluster, target())
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["-R select[a]"], "select[a] rusage[mem=1000MB]"),
        (["-Rfast"], "select[fast] rusage[mem=1000MB]"),
        (['-R "a || b"', "-R 'select[c]'"], "select[(a || b) && (c)] rusage[mem=1000MB]"),
        (["-R rusage[tmp=5]"], "rusage[tmp=5:mem=1000MB]"),
        (["-R rusage[mem=5GB:tmp=5]"], "rusage[tmp=5:mem=1000MB]"),
        (["-R rusage[a=1:duration=2]"], "rusage[a=1:duration=2, mem=1000MB]"),
        (["-R cu[maxcus=1]", "-R same[model]"], "rusage[mem=1000MB] same[model] cu[maxcus=1]"),
    ],
)
def test_the_sections_of_the_directives_and_hpcdists_own_become_one_string(given, text):
    asked = directives(job(mem_gb=1), profile(directives=given), target())
    assert f'-R "{text}"' in asked


# The shipped profile, against the scripts that DTU's pages show.

DTU = {
    "one GPU": (
        "dtu",
        {},
        ["-q gpuv100", "-n 4", '-gpu "num=1:mode=exclusive_process"', "-W 24:00"],
        '-R "span[hosts=1] rusage[mem=5GB]"',
    ),
    "two nodes": (
        "dtu",
        {"nodes": 2, "gpus": 2},
        ["-q gpuv100", "-n 16", '-gpu "num=2:mode=exclusive_process"', "-W 24:00"],
        '-R "span[ptile=8] rusage[mem=5GB]"',
    ),
    "CPUs": (
        "dtu-cpu",
        {"gpus": 2},
        ["-q hpc", "-n 8", "-W 24:00"],
        '-R "span[hosts=1] rusage[mem=5GB]"',
    ),
    "a job with much memory": (
        "dtu",
        {"mem_gb": 64},
        ["-n 4"],
        '-R "span[hosts=1] rusage[mem=16000MB]"',
    ),
}


@pytest.mark.parametrize("form", DTU)
def test_the_profile_for_dtu_asks_as_its_pages_do(form, tmp_path, monkeypatch):
    name, resources, options, requirement = DTU[form]
    text = (shipped_folder("templates") / "clusters" / "dtu.yaml").read_text()
    (tmp_path / "hpcdist.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    asked = directives(job(**resources), load_profile(name).profile, target())
    assert {*options, requirement} <= set(asked)
    assert [line for line in asked if line.startswith("-R")] == [requirement]
    assert any(line.startswith("-gpu") for line in asked) == (name == "dtu")


def test_a_command_within_a_job_is_a_program_without_arguments_for_battach(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
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
