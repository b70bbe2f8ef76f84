"""The folder of the runs: private where hpcdist makes it, refused where strangers may write it."""

import grp
import os
import stat
import subprocess
import sys

import pytest
from another_user import NOBODY, as_nobody, needs_root
from harness import submit_run

from hpcdist.base import files
from hpcdist.base.errors import RunDirectoryError
from hpcdist.doctor.examine import examine_folder
from hpcdist.job.load import load_job
from hpcdist.runs.run import Run, delete_folder, make_runs_folder

GROUP = grp.getgrgid(NOBODY).gr_name


@pytest.fixture
def script(reachable):
    (reachable / "train.py").write_text("")
    return load_job("train.py")


def own(path):
    path.mkdir(parents=True)
    return path


def test_it_is_made_private_whatever_the_umask_is(reachable):
    before = os.umask(0)
    try:
        make_runs_folder(reachable / "runs")
        Run.create(reachable / "others", "x")
    finally:
        os.umask(before)
    for name in ("runs", "others"):
        assert stat.S_IMODE((reachable / name).stat().st_mode) == 0o700


@pytest.mark.parametrize("command", ["submit --no-python true --local", "course 1"])
def test_nothing_that_a_command_makes_can_be_written_by_strangers(reachable, command):
    subprocess.run(
        ["bash", "-c", f"umask 000; exec {sys.executable} -m hpcdist {command}"],
        env={**os.environ, "HOME": str(reachable), "XDG_DATA_HOME": ""},
        check=True,
        timeout=100,
    )
    made = [path for path in reachable.rglob("*") if not path.is_symlink()]
    assert made
    assert not [path for path in made if path.stat().st_mode & stat.S_IWOTH]


def world_writable(runs):
    own(runs).chmod(0o777)
    return f"{runs} can be written by everyone", f"chmod o-w {runs}"


def foreign(runs):
    os.chown(own(runs), NOBODY, NOBODY)
    return f"{runs} belongs to nobody", "that is your own"


def link_of_another_user(runs):
    own(runs.with_name("elsewhere"))
    runs.parent.chmod(0o1777)
    as_nobody(runs.symlink_to, runs.with_name("elsewhere"))
    return f"{runs} belongs to nobody", "that is your own"


def link_in_a_world_writable_folder(runs):
    runs.parent.mkdir()
    runs.symlink_to(own(runs.parent.with_name("private")))
    runs.parent.chmod(0o777)
    return f"{runs.parent} can be written by everyone", f"chmod o-w {runs.parent}"


def link_into_a_world_writable_folder(runs):
    target = own(runs.with_name("scratch") / "deep" / "runs")
    target.parent.chmod(0o777)
    runs.symlink_to(target)
    return f"{target.parent} can be written by everyone", f"chmod o-w {target.parent}"


@needs_root
@pytest.mark.parametrize(
    "make",
    [
        world_writable,
        foreign,
        link_of_another_user,
        link_in_a_world_writable_folder,
        link_into_a_world_writable_folder,
    ],
)
def test_nothing_is_submitted_where_strangers_may_exchange_it(reachable, script, make):
    runs = reachable / "project" / "runs"
    said, how = make(runs)
    before = sorted(reachable.rglob("*"))
    with pytest.raises(RunDirectoryError) as caught:
        submit_run(script, runs)
    assert caught.value.message.startswith(said)
    assert how in caught.value.hint
    assert caught.value.exit_code == 2
    assert sorted(reachable.rglob("*")) == before
    finding = examine_folder(runs)
    assert (finding.state, how in finding.advice) == ("FAIL", True)
    assert f"{runs} is not private: {said}" in finding.detail


@needs_root
def test_a_folder_that_a_projects_group_may_write_is_used_and_doctor_names_it(reachable):
    runs = own(reachable / "project" / "runs")
    os.chown(runs.parent, 0, NOBODY)
    runs.parent.chmod(0o2770)
    make_runs_folder(runs)
    finding = examine_folder(runs)
    assert finding.state == "warn"
    assert f"can be written by the group {GROUP}" in finding.detail
    assert "private" not in finding.detail
    os.chown(runs.parent, 0, 0)  # a group that has the user alone, as a umask of 002 makes it
    assert examine_folder(runs).detail.endswith("writable and private")


@pytest.mark.parametrize("is_link", [False, True], ids=["another run", "a link to another run"])
def test_a_run_that_is_deleted_does_not_take_along_what_stands_in_its_place(reachable, is_link):
    run, other = (Run.create(reachable / "runs", name) for name in ("failed", "precious"))
    for one in (run, other):
        files.write_json(one.spec_file, {"id": one.id})
    precious = other.checkpoints_folder / "model.pt"
    precious.write_text("precious")
    run.path.rename(run.path.with_name("away"))
    if is_link:
        run.path.symlink_to(other.path)
    else:
        other.path.rename(run.path)
        precious = run.checkpoints_folder / "model.pt"
    delete_folder(run.path)
    assert precious.read_text() == "precious"
