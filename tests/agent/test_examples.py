"""The examples of docs/own-code.md: recorded, stopped by hpcdist, and gone on with without it."""

import importlib.util
import os
import shutil
import signal
from pathlib import Path

import pytest
from harness import start_script
from rank_places import environment_of, place

from hpcdist.runs.events import read_events
from hpcdist.summary import summarize

EXAMPLES = Path(__file__).parents[2] / "examples"
ENDLESS = 100_000
PACKAGES = {
    "ddp_digits": "torch",
    "lightning_digits": "pytorch_lightning",
    "accelerate_digits": "accelerate",
}
PHASES = {"data_wait", "forward_backward", "exposed_communication", "optimizer"}


@pytest.fixture
def zygote(lightning_zygote):
    """Has imported what the examples need: each import takes seconds."""
    return lightning_zygote


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.timeout(300)
def test_an_example_is_recorded_stopped_and_gone_on_with_unchanged(
    name, launch, zygote, missing, tmp_path
):
    package = PACKAGES[name]
    if importlib.util.find_spec(package) is None:
        missing(f"the package {package} is not installed (pip install hpcdist[test])")
    script = Path(shutil.copy(EXAMPLES / f"{name}.py", tmp_path))
    launched = launch(script, ENDLESS, nodes=2)
    launched.wait(lambda: has_stepped(launched.run), limit_s=90)
    os.kill(launched.agent_pid(0), signal.SIGUSR2)
    verdict = launched.verdict()
    assert (verdict.state, verdict.exit_code_of_run) == ("preempted", 75), launched.logs()
    (summary,) = summarize([launched.run], {}).runs
    assert set(summary.phase_s) - {"other"} == PHASES
    assert summary.steps > 0

    # To its end, as a user would without hpcdist: with torchrun's variables where it needs them.
    environment = {"HPCDIST_RUN_DIR": str(launched.run.path), "OMP_NUM_THREADS": "1"}
    if "ddp" in name:
        environment |= environment_of(place()) | {"MASTER_PORT": "0"}  # any
        del environment["TORCHELASTIC_USE_AGENT_STORE"]
    epochs = summary.steps // 100 + 3
    child = start_script(zygote, tmp_path, script, epochs, environment=environment)
    ended, said = child.wait(200), (tmp_path / "output").read_text()
    assert ended == 0, said
    assert float(said.split("accuracy ")[1].split()[0]) > 0.9
    if package != "pytorch_lightning":  # which says so in its own way
        assert f"goes on after step {summary.steps}" in said


def has_stepped(run):
    path = run.event_file(1)
    return path.exists() and any(e["event"] == "steps" for e in read_events(path))
