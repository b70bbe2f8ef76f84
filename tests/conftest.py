"""Fixtures that all tests share; support/harness.py says how they start runs."""

import os
import subprocess
from functools import partial
from pathlib import Path

import msgspec
import pytest
from another_user import reachable  # noqa: F401 - a fixture of all tests
from harness import (  # noqa: F401 - fixtures and hooks
    command_process,
    jobs_zygote,
    launch,
    lightning_zygote,
    pytest_collection,
    pytest_collection_modifyitems,
    pytest_xdist_make_scheduler,
    running,
    submit,
    submit_job,
    torch_zygote,
    zygote,
)
from left_behind import lasting_process, nothing_left_behind  # noqa: F401 - fixtures, too
from lsf_cluster import lsf_like  # noqa: F401
from pbs_cluster import pbs, pbs_folder  # noqa: F401
from slurm_fixtures import (  # noqa: F401
    cluster_of,
    clusters,
    slurm,
    slurm_netns,
)

from hpcdist.job.spec import Launch, ProgramJob, Record, Resources, ScriptJob

# Threads that wait for others must not spin: ranks of several tests share few CPUs, and with two
# threads per CPU a step that takes 5 ms takes a second, all of it waiting.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(autouse=True)
def no_files_of_the_user(monkeypatch, tmp_path_factory):
    """Tests know none of the profiles of the user who runs them, leave nothing in the cache, and
    share among themselves what is made once."""
    folder = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "no-configuration"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
    monkeypatch.setenv("HPCDIST_CACHE", str(folder / "cache"))
    monkeypatch.delenv("HPCDIST_CLUSTER", raising=False)


@pytest.fixture(scope="session")
def script_job():
    """Make a script job, or one of a program; `options` are keys of `resources`, `record` and of
    `launch`."""

    def make(script, *args, nodes=1, gpus=1, no_python=False, **options):
        def of(section):
            names = {field.name for field in msgspec.structs.fields(section)}
            return {key: options.pop(key) for key in names & options.keys()}

        resources, record = of(Resources), of(Record)
        kind = partial(ProgramJob, program=str(script)) if no_python else ScriptJob
        return kind(
            name=Path(script).stem,
            script=str(script),
            args=[str(arg) for arg in args],
            resources=Resources(nodes=nodes, gpus=gpus, **resources),
            launch=Launch(**{"device": "cpu"} | options),
            record=Record(**record),
        )

    return make


@pytest.fixture
def write_script(tmp_path):
    """Write a script into the test's folder; returns its path."""

    def write(text, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="session")
def missing():
    """Call it with what a test lacks on this machine: skips, or fails where nothing may be left out
    (HPCDIST_REQUIRE_ALL, as in CI)."""
    return pytest.fail if os.environ.get("HPCDIST_REQUIRE_ALL") else pytest.skip


@pytest.fixture
def small_disk(tmp_path, missing):
    """A file system of the given size in KB, which takes a superuser."""
    mounted = []

    def mount(kilobytes, inodes=1000):
        folder = tmp_path / f"disk-{kilobytes}"
        folder.mkdir()
        options = f"size={kilobytes}k,nr_inodes={inodes}"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            missing("a full disk takes a superuser who may mount one")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
