"""The examples of docs/own-code.md: recorded, stopped by hpcdist, and gone on with without it; and
that a training leaves what it leaves without hpcdist, byte for byte."""

import importlib.util
import os
import shutil
import signal
from pathlib import Path

import pytest
from rank_places import environment_of, place

from hpcdist.runs.events import read_events
from hpcdist.summary import summarize

EXAMPLES = Path(__file__).parents[2] / "examples"
ENDLESS = 100_000
STOPS = {
    # Example -> package, phases that it records
    "ddp_digits": (
        "torch",
        {"data_wait", "forward_backward", "exposed_communication", "optimizer"},
    ),
    "lightning_digits": (
        "pytorch_lightning",
        {"data_wait", "forward_backward", "exposed_communication", "optimizer"},
    ),
    "accelerate_digits": (
        "accelerate",
        {"data_wait", "forward_backward", "exposed_communication", "optimizer"},
    ),
}


@pytest.fixture
def zygote(lightning_zygote):
    """Has imported what the examples need: each import takes seconds."""
    return lightning_zygote


@pytest.mark.parametrize("name", STOPS)
@pytest.mark.timeout(300)
def test_an_example_is_recorded_stopped_and_gone_on_with_unchanged(
    name, launch, go_on, missing, tmp_path
):
    package, phases = STOPS[name]
    if importlib.util.find_spec(package) is None:
        missing(f"the package {package} is not installed (pip install hpcdist[test])")
    script = Path(shutil.copy(EXAMPLES / f"{name}.py", tmp_path))
    launched = launch(script, ENDLESS, gpus=2)
    launched.wait(lambda: has_stepped(launched.run), limit_s=90)
    os.kill(launched.agent_pid(0), signal.SIGUSR2)
    verdict = launched.verdict()
    assert (verdict.state, verdict.exit_code_of_run) == ("preempted", 75), launched.logs()
    (summary,) = summarize([launched.run], {}).runs
    assert phases == set(summary.phase_s) - {"other"}
    assert summary.steps > 0

    said = go_on(script, launched, summary.steps // 100 + 3)
    accuracy = float(said.split("accuracy ")[1].split()[0])
    assert accuracy > 0.9
    if package != "pytorch_lightning":  # which says so in its own way
        assert f"goes on after step {summary.steps}" in said


@pytest.fixture
def go_on(zygote, run_script):
    """Train an example to its end as a user would without hpcdist, with the variables of torchrun's
    one rank where it is written for that; returns what it printed."""

    def start(script, launched, epochs):
        environment = {}
        if "ddp" in script.name:
            environment = environment_of(place()) | {"MASTER_PORT": "0"}  # any
            del environment["TORCHELASTIC_USE_AGENT_STORE"]
        environment |= {"HPCDIST_RUN_DIR": str(launched.run.path), "OMP_NUM_THREADS": "1"}
        return run_script(zygote, script, epochs, environment=environment)

    return start


def has_stepped(run):
    path = run.event_file(1)
    return path.exists() and any(e["event"] == "steps" for e in read_events(path))
