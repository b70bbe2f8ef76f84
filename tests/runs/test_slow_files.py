"""Runs on a file system that takes long to answer, and gives old answers: NFS from far away."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_SOURCE = Path(__file__).parents[1] / "support" / "slow_files.c"
_SLOW_US = 10_000

ONCE_FAILING = """
import os, time
from hpcdist import record
record.start()
for step in range(3):
    time.sleep(0.05)
    record.step(samples=1)
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and step == 2:
        raise ValueError("once")
"""


@pytest.fixture
def on_slow_files(tmp_path, missing):
    """The environment of a host that has the test's folder from far away."""
    if shutil.which("gcc") is None:
        missing("gcc is not installed")
    library = tmp_path / "slow_files.so"
    command = ["gcc", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    slow = tmp_path / "slow"
    slow.mkdir()
    return os.environ | {
        "LD_PRELOAD": str(library),
        "SLOW_FOLDER": str(slow),
        "SLOW_US": str(_SLOW_US),
    }


def test_on_a_slow_file_system_with_old_answers_nothing_times_out_and_the_verdict_is_found(
    on_slow_files, tmp_path
):
    """The whole way: agents meet, a rank fails, all start again, and whoever follows sees the end,
    though each was told of files before they were there."""
    (tmp_path / "train.py").write_text(ONCE_FAILING)
    runs = on_slow_files["SLOW_FOLDER"]
    command = [sys.executable, "-m", "hpcdist", "submit", "train.py", "--local", f"--runs={runs}"]
    options = ["--nodes=2", "--max-restarts=1", "--set=launch.device=cpu"]

    done = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env=on_slow_files,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    (run,) = Path(runs).iterdir()
    verdict = json.loads((run / "verdict.json").read_text())
    assert (verdict["kind"], verdict["restarts"]) == ("done", 1)
    first = json.loads((run / "attempts" / "00000" / "verdict.json").read_text())
    first = first["first"]
    assert (first["rank"], first["report"]["exception"]) == (1, "ValueError")
