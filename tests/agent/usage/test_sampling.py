"""The GPUs of a run, from a driver whose figures are known."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdist.runs.events import read_events
from hpcdist.runs.run import Run
from hpcdist.summary import summarize

SCRIPT = """
import time
from hpcdist.rank import context as rank
from hpcdist.runs.events import read_events

own = rank.current().run.usage_file(0)
deadline = time.monotonic() + 60
while not own.exists() or len(read_events(own)) < 4:
    assert time.monotonic() < deadline
    time.sleep(0.02)
"""


def test_the_gpus_of_a_run_are_sampled_in_the_order_in_which_it_has_them(
    driver, write_script, tmp_path
):
    script = write_script(SCRIPT)
    submit = ["submit", str(script), "--local", "--gpus", "2", "--set", "record.usage_s=0.1"]
    done = subprocess.run(
        [sys.executable, "-m", "hpcdist", *submit],
        check=False,
        cwd=tmp_path,
        env=os.environ
        | {"LD_LIBRARY_PATH": str(driver), "CUDA_VISIBLE_DEVICES": "1,0", "HPCDIST_RUNS": "runs"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    (path,) = Path(tmp_path, "runs").iterdir()
    run = Run(path)
    first, begin, *_ = read_events(run.usage_file(0))
    assert ("gpus" in first, first["num_cpus"]) == (False, begin["num_cpus"])
    assert [gpu["uuid"] for gpu in begin["gpus"]] == ["GPU-fake-1", "GPU-fake-0"]
    summary = summarize([run], {}).runs[0]
    assert summary.usage.gpu_utilization == pytest.approx(0.6)
    assert summary.cost.gpu_hours > 0
