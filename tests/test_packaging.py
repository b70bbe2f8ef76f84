"""The sdist and its wheel hold what they should, and a run starts from the wheel alone."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
SHIPPED = ("hpcdist", "course", "docs/course", "docs/terms", "examples", "jobs", "templates")
IN_SDIST = ("setup.cfg", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "MANIFEST.in")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the sdist, and the wheel that was built from it."""
    # From a copy: a build leaves folders beside its sources.
    sources = tmp_path_factory.mktemp("sources")
    for name in (*SHIPPED, *IN_SDIST, "constraints.txt", "tests"):
        subprocess.run(["cp", "-r", "--parents", name, sources], cwd=REPOSITORY, check=True)
    out = tmp_path_factory.mktemp("built")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, sources],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


def sources_that_ship():
    paths = [path for name in SHIPPED for path in (REPOSITORY / name).rglob("*") if path.is_file()]
    relative = [
        path.relative_to(REPOSITORY) for path in paths if path.suffix not in {".pyc", ".png"}
    ]
    return {str(path) for path in relative}


@pytest.fixture
def installed(wheel, tmp_path):
    """Environment of a process that sees the wheel's contents, not the checkout."""
    folder = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return os.environ | {"PYTHONPATH": str(folder)}


def hpcdist(installed, cwd, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "hpcdist", *arguments],
        cwd=cwd,
        env=installed,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_sdist_holds_the_sources_and_no_more(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {one.name.partition("/")[2] for one in archive if not one.isdir()}
    made = {"PKG-INFO", *(name for name in names if name.startswith("hpcdist.egg-info/"))}
    assert names - made == {*sources_that_ship(), *IN_SDIST, "constraints.txt"}


def test_the_wheel_holds_every_source_that_ships_and_no_more(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    moved = r"^(course|docs/course|docs/terms|examples|jobs|templates)/"
    inside = {re.sub(moved, r"hpcdist/\1/", name) for name in sources_that_ship()}
    assert names == inside


def test_the_wheel_alone_has_its_jobs_and_trains(installed, tmp_path):
    jobs = hpcdist(installed, tmp_path, "jobs", "--json")
    short = ("--set", "train.max_steps=1", "--json")
    ran = hpcdist(installed, tmp_path, "submit", "ddp", "--local", *short)
    assert jobs.returncode == 0, jobs.stderr
    (ddp,) = [job for job in json.loads(jobs.stdout) if job["name"] == "ddp"]
    assert str(REPOSITORY) not in ddp["path"]
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["state"] == "done"
