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
before = list(sys.path)
import hpcdist
from hpcdist.base import needs
found = {"is_behind": sys.path[:len(before)] == before}
try:
    needs.check("the image")
except SystemExit as missing:
    found["missing"] = str(missing)
import hpcdist.agent.agent, hpcdist.agent.sampler
import hpcdist.entry, hpcdist.schedulers.submitting
from hpcdist.base.files import shipped_folder
from hpcdist.workloads import own_code
found["shipped"] = [(shipped_folder(name) / file).is_file()
    for name, file in (("jobs", "ddp.yaml"), ("templates", "slurm.sh"))]
print(json.dumps(found))
"""


def test_a_python_without_packages_finds_all_that_an_agent_needs_but_torch(tmp_path):
    done = subprocess.run(
        [BASE_PYTHON, "-S", "-s", "-c", LOOK],
        env={"PYTHONPATH": str(carry(tmp_path)), "PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["missing"] == "the image has no torch: python -m pip install torch"
    assert found["is_behind"]
    assert found["shipped"] == [True, True]


@pytest.mark.parametrize("cache", ["", "below"])
def test_a_folder_that_others_can_write_is_refused(tmp_path, cache):
    opened = tmp_path / "of-everyone" if cache else tmp_path / "carried"
    opened.mkdir()
    opened.chmod(0o777)
    with pytest.raises(UserError, match=f"{opened.name} can be written by everyone"):
        carry(opened / cache if cache else tmp_path)
