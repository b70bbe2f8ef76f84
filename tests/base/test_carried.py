"""hpcdist carried along for another Python: what that one finds, and what it is told is missing."""

import json
import os
import subprocess
import sys

import pytest

from hpcdist.base.carried import carry
from hpcdist.base.errors import UserError

BASE_PYTHON = getattr(sys, "_base_executable", sys.executable)

LOOK = """
import json, sys
from importlib.machinery import ExtensionFileLoader, FileFinder, SourceFileLoader
def find_for_other_pythons(path):
    if "/hpcdist/carried" not in path:
        raise ImportError
    return FileFinder(path, (ExtensionFileLoader, [".abi3.so"]), (SourceFileLoader, [".py"]))
if {is_other}:
    sys.path_hooks.insert(0, find_for_other_pythons)
before = list(sys.path)
import hpcdist
from hpcdist.base import needs
found = {{"is_behind": sys.path[:len(before)] == before}}
try:
    needs.check("the image")
except SystemExit as missing:
    found["missing"] = str(missing)
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


def look_from_another_python(folder, *, is_other=False):
    """What a Python without any package of its own finds."""
    done = subprocess.run(
        [BASE_PYTHON, "-S", "-s", "-c", LOOK.format(is_other=is_other)],
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
    assert found["missing"] == "the image has no torch: python -m pip install torch"
    assert found["is_behind"]
    assert found["shipped"] == [True, True]


def test_what_was_compiled_for_this_python_is_missing_in_another_and_named(folder):
    found = look_from_another_python(folder, is_other=True)
    expected = "the image has no msgspec and no torch: python -m pip install msgspec torch"
    assert found["missing"] == expected


def test_it_is_made_once(cache, folder):
    before = (folder / "hpcdist" / "base" / "errors.py").stat().st_ino
    assert carry(cache) == folder
    assert (folder / "hpcdist" / "base" / "errors.py").stat().st_ino == before
    assert not [name for name in os.listdir(folder.parent) if name.startswith(".")]


@pytest.mark.parametrize("cache", ["", "below"])
def test_a_folder_that_others_can_write_is_refused(tmp_path, cache):
    opened = tmp_path / "of-everyone" if cache else tmp_path / "carried"
    opened.mkdir()
    opened.chmod(0o777)
    with pytest.raises(UserError, match=f"{opened.name} can be written by everyone"):
        carry(opened / cache if cache else tmp_path)
