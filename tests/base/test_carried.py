"""hpcdist carried along for another Python: what that one finds, and what it is told is missing."""

import json
import os
import subprocess
import sys

import pytest

from hpcdist.base.carried import CannotCarryError, carry
from hpcdist.base.needs import compiled_tags

BASE_PYTHON = getattr(sys, "_base_executable", sys.executable)
OTHER_TAG = "cpython-399-x86_64-linux-gnu"

LOOK = """
import importlib.machinery, json, sys
if {tag!r}:
    importlib.machinery.EXTENSION_SUFFIXES[0] = "." + {tag!r} + ".so"
before = list(sys.path)
import hpcdist
from hpcdist.base import needs
found = {{"missing": needs.missing(), "is_behind": sys.path[:len(before)] == before}}
found["advice"] = needs.what_to_do(found["missing"], "the image")
if "msgspec" not in found["missing"]:
    import hpcdist.agent.agent, hpcdist.agent.sampler
    import hpcdist.entry, hpcdist.schedulers.submitting
    from hpcdist.base.files import shipped_folder
    from hpcdist.workloads import own_code
    found["shipped"] = [(shipped_folder(name) / file).is_file()
        for name, file in (("jobs", "ddp.yaml"), ("templates", "slurm.sh"))]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def folder(cache):
    return carry(cache)


def look_from_another_python(folder, tag=""):
    """What a Python without any package of its own finds."""
    done = subprocess.run(
        [BASE_PYTHON, "-S", "-s", "-c", LOOK.format(tag=tag)],
        env={"PYTHONPATH": str(folder), "PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_another_python_finds_all_that_an_agent_needs_but_torch(folder):
    found = look_from_another_python(folder)
    assert found["missing"] == ["torch"]
    assert found["is_behind"]
    assert found["shipped"] == [True, True]
    assert found["advice"] == "the image has no torch: python -m pip install torch"


def test_what_was_compiled_for_this_python_is_missing_in_another_and_named(folder):
    found = look_from_another_python(folder, OTHER_TAG)
    assert found["missing"] == ["msgspec", "torch"]
    assert found["advice"].endswith(": python -m pip install msgspec torch")


def test_it_is_made_once(cache, folder):
    before = (folder / "hpcdist" / "base" / "errors.py").stat().st_ino
    assert carry(cache) == folder
    assert (folder / "hpcdist" / "base" / "errors.py").stat().st_ino == before
    assert {*os.listdir(folder / "hpcdist" / "carried")} <= {"any", *compiled_tags()}
    assert not [name for name in os.listdir(folder.parent) if name.startswith(".")]


def test_a_folder_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "carried").mkdir()
    (tmp_path / "carried").chmod(0o777)
    with pytest.raises(CannotCarryError, match="can be written by everyone"):
        carry(tmp_path)
    above = tmp_path / "of-everyone"
    above.mkdir()
    above.chmod(0o777)
    with pytest.raises(CannotCarryError, match="of-everyone can be written by everyone"):
        carry(above / "cache")
