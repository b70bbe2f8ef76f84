"""The examples of docs/own-code.md: recorded, stopped by hpcdist, and gone on with by torchrun."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked_agents import zygote as make_zygote

from hpcdist.runs.events import read_events
from hpcdist.summary import summarize

EXAMPLES = Path(__file__).parents[2] / "examples"
ENDLESS = 100_000
STOPS = {
    # Example -> package, phases that it records, what it is started with outside of hpcdist
    "ddp_digits": (
        "torch",
        {"data_wait", "forward_backward", "exposed_communication", "optimizer"},
        ["-m", "torch.distributed.run", "--nproc-per-node=1", "--standalone"],
    ),
    "lightning_digits": (
        "pytorch_lightning",
        {"data_wait", "forward_backward", "optimizer"},
        [],
    ),
    "accelerate_digits": (
        "accelerate",
        {"data_wait", "forward_backward", "exposed_communication", "optimizer"},
        [],
    ),
}


@pytest.fixture(scope="module")
def zygote(lasting_process):
    """Has imported what the examples need: each import takes seconds."""
    packages = filter(importlib.util.find_spec, ["pytorch_lightning", "accelerate"])
    with make_zygote(lasting_process, *packages, "sklearn.datasets") as process:
        yield process


@pytest.mark.parametrize("name", STOPS)
@pytest.mark.timeout(300)
def test_an_example_is_recorded_stopped_and_gone_on_with_unchanged(name, launch, missing, tmp_path):
    package, phases, started_with = STOPS[name]
    if importlib.util.find_spec(package) is None:
        missing(f"the package {package} is not installed (pip install hpcdist[test])")
    script = shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
    launched = launch(script, ENDLESS, gpus=2)
    launched.wait(lambda: has_stepped(launched.run), limit_s=90)
    os.kill(launched.agent_pid(0), signal.SIGUSR2)
    verdict = launched.verdict()
    assert (verdict.state, verdict.exit_code_of_run) == ("preempted", 75), launched.logs()
    (summary,) = summarize([launched.run], {}).runs
    assert phases == set(summary.phase_s) - {"other"}
    assert summary.steps > 0

    done = subprocess.run(
        [sys.executable, *started_with, script, str(summary.steps // 100 + 3)],
        cwd=tmp_path,
        env=os.environ | {"HPCDIST_RUN_DIR": str(launched.run.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    accuracy = float(done.stdout.split("accuracy ")[1].split()[0])
    assert accuracy > 0.9
    if package != "pytorch_lightning":  # which says so in its own way
        assert f"goes on after step {summary.steps}" in done.stdout


def has_stepped(run):
    path = run.event_file(1)
    return path.exists() and any(e["event"] == "steps" for e in read_events(path).events)
