"""What qsub is asked for, and what PBS keeps in the script's place."""

import os
import subprocess
from pathlib import Path

import pytest
from another_user import NOBODY, needs_root

from hpcdist.base import files
from hpcdist.base.errors import JobError, ProfileError, RunDirectoryError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import Launch, Resources, ScriptJob
from hpcdist.machine.command import CommandFailedError, CommandTimeoutError
from hpcdist.schedulers.base import Dependency, Target
from hpcdist.schedulers.pbs import commands
from hpcdist.schedulers.pbs.commands import qsub, write_environment
from hpcdist.schedulers.pbs.qstat import parse_jobs
from hpcdist.schedulers.pbs.request import directives, explanation, job_script


def job(*, device="auto", **resources):
    return ScriptJob(
        name="train",
        script="/home/ann/train.py",
        resources=Resources(**resources),
        launch=Launch(device=device, requeue=True),
    )


def target(folder="/scratch/ann/my runs/RUN", **options):
    return Target(name="RUN", folder=Path(folder), cwd="/home/ann", **options)


def after(kind, *job_ids):
    return target(dependencies=[Dependency(kind=kind, job_ids=list(job_ids))])


def test_two_nodes_are_two_chunks_on_hosts_of_their_own():
    profile = ClusterProfile(
        scheduler="pbs",
        partition="gpuq",
        account="ml",
        cpus_per_gpu=4,
        constraint="gpu_model=a100",
        directives=["-P project"],
    )
    asked = directives(job(nodes=2, gpus=2, mem_gb=40, time_limit_min=90.5), profile, target())
    assert asked == [
        "-N RUN",
        "-q gpuq",
        "-A ml",
        "-l select=2:ncpus=8:mem=38147mb:ngpus=2:gpu_model=a100",
        "-l place=scatter",
        "-l walltime=1:30:30",
        "-r y",
        "-j oe",
        "-o '/scratch/ann/my runs/RUN/submitit/0_pbs.out'",
        "-P project",
    ]


def test_an_array_has_its_places_and_its_limit():
    asked = directives(job(device="cpu"), ClusterProfile(), target(array_size=20, max_parallel=4))
    assert "-l select=1:ncpus=1" in asked
    assert "-J 0-19%4" in asked
    assert "-o '/scratch/ann/my runs/RUN/submitit/^array_index^_pbs.out'" in asked


def test_what_a_job_waits_for_is_one_option():
    both = target(
        dependencies=[
            Dependency(kind="afterok", job_ids=["11", "12"]),
            Dependency(kind="afterany", job_ids=["14[3]", "14[4]"]),
            Dependency(kind="afterany", job_ids=["15"]),
        ]
    )
    asked = directives(job(), ClusterProfile(), both)
    assert "-W depend=afterok:11:12,afterany:14[]:15" in [one.replace("'", "") for one in asked]


@pytest.mark.parametrize("job_id", ["14[]", "14[3]"])
def test_the_good_end_of_an_array_cannot_be_waited_for(job_id):
    with pytest.raises(JobError, match=r"whether runs of the array 14\[\] ended well"):
        directives(job(), ClusterProfile(), after("afterok", job_id))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"qos": "high"}, "qos is high, and PBS has none"),
        ({"gpu_type": "a100"}, "gpu_type is a100, and PBS has none"),
        ({"gpu_request": "gres"}, "a word of Slurm's"),
    ],
)
def test_a_profile_that_pbs_cannot_be_asked_for_is_refused(values, words):
    with pytest.raises(ProfileError, match=words):
        directives(job(), ClusterProfile(scheduler="pbs", **values), target())


def test_other_resources_and_options_may_be_directives():
    profile = ClusterProfile(directives=["-l software=x", "-W umask=022", "-m abe"])
    assert directives(job(), profile, target())[-3:] == profile.directives


def test_the_explanation_says_where_numbers_come_from():
    lines = explanation(job(nodes=2, gpus=2, time_limit_min=60), ClusterProfile(cpus_per_gpu=4))
    assert lines[0].startswith("CPUs: 2 nodes x 8 CPUs = 16 CPUs (2 ranks x cpus_per_gpu 4, from")
    assert "GPUs: 2 nodes x 2 GPUs = 4 GPUs: ngpus=2 of each chunk" in lines
    assert lines[-1].startswith(
        "time limit 1 h (time_limit_min, from the job): -l walltime=1:00:00"
    )


def script(folder="/scratch/ann/RUN"):
    return job_script(
        job(nodes=2), ClusterProfile(setup=["module load cuda"]), target(folder), environment={}
    )


def test_the_script_is_one_for_bash():
    text = script("/scratch/ann/it's here")
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--nodes 2 --launcher 'pbs_tmrsh {host} {command}'" in text


@pytest.mark.parametrize("sign", [":", ",", "^", "%"])
def test_a_folder_that_pbs_would_misread_is_refused(sign):
    with pytest.raises(RunDirectoryError, match="the path holds"):
        script(f"/scratch/a{sign}b")


def test_the_environment_of_the_submission_stands_in_a_private_file_that_is_checked(
    tmp_path, monkeypatch
):
    folder = tmp_path / "submitit"
    folder.mkdir(mode=0o700)
    value = 'it\'s "odd" $HOME\n`date` \\ \udce4'
    for name, text in {"ODD": value, "PBS_JOBID": "7.pbs", "TMPDIR": "/tmp/x"}.items():
        monkeypatch.setenv(name, text)
    write_environment(folder)
    file = folder / "environment.sh"
    assert file.stat().st_mode & 0o777 == 0o600
    text = os.fsdecode(file.read_bytes())
    # The script as far as its log begins, which tells what the profile's lines would see.
    before, _, _ = script(str(tmp_path)).partition("# PBS copies")
    argv = ["bash", "-c", f'{before}\nprintf %s "$ODD$1$PWD"', "script", "3"]

    def run():
        return subprocess.run(argv, capture_output=True, env={"HOME": "/"}, cwd="/", check=False)

    assert os.fsdecode(run().stdout) == value + "3/"
    assert "ODD=" not in before
    for spoil, mend in (
        (lambda: file.chmod(0o620), lambda: file.chmod(0o600)),
        (lambda: folder.chmod(0o702), lambda: folder.chmod(0o700)),
        (lambda: file.rename(tmp_path / "away"), lambda: (tmp_path / "away").rename(file)),
        (lambda: folder.rename(tmp_path / "away"), lambda: (tmp_path / "away").rename(folder)),
    ):
        spoil()
        done = run()
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"can be written by others: nothing of it was run" in done.stderr
        mend()
    assert "PBS_JOBID" not in text
    assert "TMPDIR" not in text


QSUB = """#!/bin/bash
printf '%s\\n' "$@" > "$0.words"
while [ "$1" != -- ]; do shift; done
shift
exec "$@" > "$0.out" 2>&1
"""


@pytest.fixture
def fake_qsub(tmp_path, monkeypatch):
    """A qsub that runs what it is given at once, and says what the test has written."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(text):
        (tmp_path / "qsub").write_text(text)
        (tmp_path / "qsub").chmod(0o755)

    return write


def send(tmp_path, *, spoil=lambda _: None, ask=list, **options):
    text = f"#PBS -N old\n#PBS -J 0-3\n#PBS -o '{tmp_path}/a b'\necho \"$1 ran\"\n\n"
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700, exist_ok=True)
    files.write_whole(folder / "script.sh", text)
    spoil(folder)
    return qsub(folder, text, "RUN", ask=ask, **options)


def test_pbs_runs_the_script_as_it_was_submitted(tmp_path, fake_qsub):
    fake_qsub(QSUB.replace("exec", "echo 12.pbs; echo '  a quota is near'; exec"))
    assert send(tmp_path, arguments=["3"]) == ("12", ["a quota is near"])
    words = (tmp_path / "qsub.words").read_text().splitlines()
    assert words[:8] == ["-f", "-N", "RUN", "-J", "0-3", "-o", f"{tmp_path}/a b", "--"]
    assert (tmp_path / "qsub.out").read_text() == "3 ran\n"


def test_directives_that_count_once_are_left_out_of_the_next_job(tmp_path, fake_qsub):
    fake_qsub(QSUB.replace("exec", "echo 12.pbs; exec"))
    send(tmp_path, change=lambda line: "" if line.startswith("-J") else line)
    assert "-J" not in (tmp_path / "qsub.words").read_text().splitlines()


def put_foreign_folder(folder):
    (folder / "script.sh").unlink()
    folder.rmdir()
    folder.symlink_to(folder.parent / "theirs")
    folder.parent.joinpath("theirs").mkdir()
    files.write_whole(folder / "script.sh", "echo ran\n")
    os.chown(folder.parent / "theirs", NOBODY, NOBODY)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda folder: (folder / "script.sh").chmod(0o622), id="file of all"),
        pytest.param(lambda folder: folder.chmod(0o720), id="folder of the group"),
        pytest.param(lambda folder: os.chown(folder, NOBODY, 0), id="foreign", marks=needs_root),
        pytest.param(
            lambda folder: os.chown(folder / "script.sh", NOBODY, 0),
            id="foreign file",
            marks=needs_root,
        ),
        pytest.param(put_foreign_folder, id="link to a foreign folder", marks=needs_root),
    ],
)
def test_nothing_runs_of_a_script_that_others_could_have_changed(tmp_path, fake_qsub, spoil):
    fake_qsub(QSUB.replace("exec", "echo 12.pbs; exec").replace('exec "$@"', '"$@"') + "exit 0\n")
    send(tmp_path, spoil=spoil)
    said = (tmp_path / "qsub.out").read_text()
    assert "can be written by others: nothing of it was run" in said
    assert "ran\n" not in said.splitlines()


def test_a_refusal_is_told_in_pbss_words(tmp_path, fake_qsub):
    fake_qsub("#!/bin/sh\necho 'qsub: Unknown queue' >&2\nexit 170\n")
    with pytest.raises(CommandFailedError, match="qsub: Unknown queue") as caught:
        send(tmp_path)
    assert "nothing was submitted" in caught.value.hint
    assert "find" not in caught.value.message


def test_after_a_qsub_without_an_answer_the_job_is_found_by_its_name(
    tmp_path, fake_qsub, monkeypatch
):
    monkeypatch.setattr(commands, "_QSUB_TIMEOUT_S", 0.2)
    fake_qsub("#!/bin/sh\nexec sleep 60\n")
    there = parse_jobs("Job Id: 12[1].pbs\n    Job_Name = RUN\n    job_state = Q\n")
    job_id, (said,) = send(tmp_path, ask=lambda: there)
    assert job_id == "12[]"
    assert said.startswith("qsub gave up, but its job 12[] is there")
    monkeypatch.setattr("hpcdist.schedulers.jobs._SETTLE_S", 0.0)
    with pytest.raises(CommandTimeoutError):
        send(tmp_path)
