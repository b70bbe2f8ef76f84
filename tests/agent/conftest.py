"""Scripts by themselves, and trainings that lack memory, forked from a process that has torch."""

from pathlib import Path

import pytest
from harness import start_run, start_script

from hpcdist.job.load import load_job


@pytest.fixture
def run_script(tmp_path):
    """Run a script by itself in the test's folder, forked from this process; returns what it
    printed."""

    def start(zygote, script, *arguments, environment, code=0, limit_s=200):
        child = start_script(zygote, tmp_path, script, *arguments, environment=environment)
        ended = child.wait(limit_s)
        printed = (tmp_path / "output").read_text()
        assert ended == code, printed
        return printed

    return start


@pytest.fixture
def lack_memory(tmp_path, monkeypatch, running):
    """Train a model for which there is no memory, with agents of this process, and look at what is
    told of it."""
    monkeypatch.chdir(Path(__file__).parents[1] / "support")

    def start(zygote, workload):
        model = ("model.name=hungry_model:Net", "model.args.width=5000000")
        loaded = load_job(workload, overrides=["launch.device=cpu", *model])
        change = "hungry_model:go_to_its_folder"
        launched = running(*start_run(zygote, loaded, tmp_path / "runs", change=change))
        verdict = launched.verdict()
        assert verdict.kind == "out_of_memory", launched.everything_said()
        assert "allocate memory" in verdict.message

    return start
