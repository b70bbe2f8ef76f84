"""The wheel works outside the checkout: what ships in it is found, and a run starts from it."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    # From a copy: a build leaves folders beside its sources.
    sources = tmp_path_factory.mktemp("sources")
    for name in ("hpcdist", "jobs", "templates", "setup.cfg", "pyproject.toml", "README.md"):
        subprocess.run(["cp", "-r", REPOSITORY / name, sources], check=True)
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, sources],
        check=True,
        capture_output=True,
        timeout=110,
    )
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Environment of a process that sees the wheel's contents, not the checkout."""
    folder = tmp_path_factory.mktemp("installed")
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


def test_the_wheel_holds_jobs_and_templates_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()

    assert {
        "hpcdist/jobs/ddp.yaml",
        "hpcdist/templates/local.sh.j2",
        "hpcdist/templates/report.html.j2",
        "hpcdist/templates/report.css",
        "hpcdist/templates/report.js",
        "hpcdist/templates/clusters/dtu.yaml",
        "hpcdist/schedulers/lsf/request.py",
        "hpcdist/py.typed",
    } <= set(names)
    assert not [name for name in names if name.startswith(("tests", "perf", "jobs/"))]


def test_jobs_and_render_work_from_the_wheel(installed, tmp_path):
    jobs = hpcdist(installed, tmp_path, "jobs", "--json")
    rendered = hpcdist(installed, tmp_path, "render", "ddp", "--local")
    copied = hpcdist(installed, tmp_path, "cluster", "copy", "dtu")

    assert jobs.returncode == 0, jobs.stderr
    (ddp,) = [job for job in json.loads(jobs.stdout) if job["name"] == "ddp"]
    assert str(REPOSITORY) not in ddp["path"]
    assert rendered.returncode == 0, rendered.stderr
    assert rendered.stdout.startswith("#!/bin/bash\n")
    assert "gpuv100" in copied.stdout, copied.stderr


def test_a_run_from_the_wheel_trains(installed, tmp_path):
    ran = hpcdist(
        installed, tmp_path, "submit", "ddp", "--local", "--set", "train.max_steps=1", "--json"
    )

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["state"] == "done"
