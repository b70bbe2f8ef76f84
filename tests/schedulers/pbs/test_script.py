"""What qsub is asked for, and what PBS keeps in the script's place."""

import os
import subprocess

import pytest
from another_user import NOBODY, needs_root
from script_jobs import job, target

from hpcdist.base import files
from hpcdist.base.errors import ProfileError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.schedulers.base import Plan
from hpcdist.schedulers.pbs.pbs import scheduler
from hpcdist.schedulers.request import lay_out


@pytest.mark.parametrize("key", ["qos", "gpu_type"])
def test_a_profile_that_pbs_cannot_be_asked_for_is_refused(key):
    with pytest.raises(ProfileError, match=f"{key} is high, and PBS has none"):
        scheduler.plan(job(), ClusterProfile(scheduler="pbs", **{key: "high"}))


def test_the_environment_of_the_submission_stands_in_a_private_file_that_is_checked(
    tmp_path, monkeypatch
):
    folder = tmp_path / "submitit"
    folder.mkdir(mode=0o700)
    value = 'it\'s "odd" $HOME\n`date` \\ \udce4'
    for name, text in {"ODD": value, "PBS_JOBID": "7.pbs", "TMPDIR": "/tmp/x"}.items():
        monkeypatch.setenv(name, text)
    scheduler.environment(os.environ, target(tmp_path), "")
    file = folder / "environment.sh"
    assert file.stat().st_mode & 0o777 == 0o600
    text = os.fsdecode(file.read_bytes())
    assert "PBS_JOBID" not in text
    assert "TMPDIR" not in text
    # The script as far as its log begins, which tells what the profile's lines would see.
    launch = lay_out(job(), ClusterProfile(), warning_signals=[])
    script = scheduler.render(
        job(), target(tmp_path), Plan(launch=launch, cluster=ClusterProfile())
    )
    before, _, _ = script.partition("# PBS copies")
    assert "ODD=" not in before
    argv = ["bash", "-c", f'{before}\nprintf %s "$ODD$PWD"']

    def run():
        return subprocess.run(argv, capture_output=True, env={"HOME": "/"}, cwd="/", check=False)

    assert os.fsdecode(run().stdout) == value + "/"
    for spoil, mend in (
        (lambda: file.chmod(0o620), lambda: file.chmod(0o600)),
        (lambda: folder.chmod(0o702), lambda: folder.chmod(0o700)),
        (lambda: folder.rename(tmp_path / "away"), lambda: (tmp_path / "away").rename(folder)),
    ):
        spoil()
        done = run()
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"can be written by others: nothing of it was run" in done.stderr
        mend()


QSUB = """#!/bin/bash
printf '%s\\n' "$@" > "$0.words"
while [ "$1" != -- ]; do shift; done
shift
"$@" > "$0.out" 2>&1
exit 0
"""


@pytest.fixture
def fake_qsub(tmp_path, monkeypatch):
    """A qsub that runs what it is given at once."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))  # the login shell reads no profile
    (tmp_path / "qsub").write_text(QSUB)
    (tmp_path / "qsub").chmod(0o755)


def send(tmp_path, *, spoil=lambda _: None, **options):
    """Call qsub with the command for a script, which is run at once."""
    text = f"#PBS -N RUN\n#PBS -W depend=afterok:7\n#PBS -o '{tmp_path}/a b'\necho ran\n\n"
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700, exist_ok=True)
    files.write_whole(folder / "script.sh", text)
    spoil(folder)
    argv = scheduler.submit_command(target(folder, **options), text)
    subprocess.run(argv, check=True, capture_output=True)


@pytest.mark.parametrize("continues", [False, True])
def test_pbs_runs_the_script_as_it_was_submitted_and_what_goes_on_waits_for_nothing(
    tmp_path, fake_qsub, continues
):
    send(tmp_path, continues=continues)
    words = (tmp_path / "qsub.words").read_text().splitlines()
    waits = [] if continues else ["-W", "depend=afterok:7"]
    expected = ["-f", "-N", "RUN", *waits, "-o", f"{tmp_path}/a b", "--"]
    assert words[: len(expected)] == expected
    assert (tmp_path / "qsub.out").read_text() == "ran\n"


def test_the_id_of_a_job_is_told_without_its_server():
    assert [scheduler.parse_submitted(one) for one in ("12.login.site", "12")] == ["12", "12"]
    assert scheduler.parse_submitted("a quota of 12.pbs is near") is None


def put_foreign_file(folder):
    os.chown(folder / "script.sh", NOBODY, 0)


def put_foreign_folder(folder):
    theirs = folder.rename(folder.with_name("theirs"))
    folder.symlink_to(theirs)
    os.chown(theirs, NOBODY, NOBODY)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda folder: (folder / "script.sh").chmod(0o622), id="file of all"),
        pytest.param(lambda folder: folder.chmod(0o720), id="folder of the group"),
        pytest.param(put_foreign_file, id="foreign file", marks=needs_root),
        pytest.param(put_foreign_folder, id="link to a foreign folder", marks=needs_root),
    ],
)
def test_nothing_runs_of_a_script_that_others_could_have_changed(tmp_path, fake_qsub, spoil):
    send(tmp_path, spoil=spoil)
    said = (tmp_path / "qsub.out").read_text()
    assert "can be written by others: nothing of it was run" in said
    assert "ran\n" not in said.splitlines()
