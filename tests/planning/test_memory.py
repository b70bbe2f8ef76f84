"""The memory of a training: torch's tracker on a tiny model, and a plan against a run."""

import json
import os
import subprocess
import sys

import msgspec
import pytest

import hpcdist
from hpcdist.job.spec import Data, Resources, Train, TrainJob, job_to_dict
from hpcdist.machine.command import python_command
from hpcdist.planning.memory import Memory
from hpcdist.runs.run import all_runs

PARAMETERS = 53_002
SHORT = ("--set", "train.max_steps=3", "--set", "train.batch_size=1024")


def track(strategy, *, room_bytes=None, gpus=1):
    job = TrainJob(
        name="tiny",
        strategy=strategy,
        resources=Resources(gpus=gpus),
        data=Data(name="digits"),
        train=Train(batch_size=32, evaluate_every_epochs=0),
    )
    question = msgspec.json.encode((job_to_dict(job), "cuda", room_bytes))
    command = python_command("from hpcdist.planning.memory import answer; answer()")
    done = subprocess.run(command, input=question, capture_output=True, check=True)
    return msgspec.json.decode(done.stdout, type=Memory)


def test_the_tracker_counts_parameters_states_and_activations_and_finds_the_largest_batch():
    room_bytes = 16 * PARAMETERS + 1.2e6
    found = track("single", room_bytes=room_bytes)
    held = {name: found.parts[name] for name in ("Parameter", "Optstate")}
    # AdamW has two values per parameter, and a step for each of eight tensors.
    assert held == {"Parameter": 4 * PARAMETERS, "Optstate": 8 * PARAMETERS + 8 * 4}
    assert found.estimate_bytes == sum(found.parts.values())
    # What grows with the batch is about 25 kB for each image.
    per_image = (found.estimate_bytes - 16 * PARAMETERS) / 32
    assert 5e3 < per_image < 1e5
    assert found.largest_batch == pytest.approx(1.2e6 / per_image, rel=0.15)


def test_sharded_states_are_a_part_of_the_whole():
    found = track("fsdp", gpus=2)
    assert found.parts["Sharded Param"] == pytest.approx(2 * PARAMETERS, rel=0.01)
    assert found.parts["OptState"] == pytest.approx(4 * PARAMETERS, rel=0.01)


@pytest.mark.timeout(400)
def test_a_run_keeps_its_plan_and_the_next_plan_knows_how_right_it_was(tmp_path):
    def call(*words):
        command = (sys.executable, "-m", "hpcdist", *words)
        environment = os.environ | {"HPCDIST_RUNS": str(tmp_path / "runs")}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    job = ("ddp", "--local", *SHORT)
    probed = json.loads(call("plan", *job, "--probe", "60", "--json"))
    assert "at the pace of a probe" in probed["duration"]["source"]
    assert probed["planned"]["wait_s"] < 1
    call("submit", *job)
    (run,) = all_runs(tmp_path / "runs")
    assert msgspec.to_builtins(run.spec.planned) == probed["planned"]
    peak_bytes = hpcdist.load(run.id, runs=tmp_path / "runs").summary().peak_rss_bytes
    assert probed["planned"]["memory_bytes"] == pytest.approx(peak_bytes, rel=0.15)
    again = call("plan", *job)
    assert "from 1 run of this size" in again
    assert "measured / planned of 1 run: duration" in again
