"""The memory of a training: torch's tracker on a tiny model, and a plan against a run."""

import json
import os
import re
import signal
import subprocess
import sys

import msgspec
import pytest
from waiting import wait_for

import hpcdist
from hpcdist.data.trial import call_apart
from hpcdist.job.spec import Data, Resources, Train, TrainJob, job_to_dict
from hpcdist.runs.run import all_runs

PARAMETERS = 53_002
FAILS_IN_TRAINING = """
from torch import nn
class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.last = nn.Linear(64, num_classes)
    def forward(self, images):
        assert not self.training, "no training today"
        return self.last(images.flatten(1))
"""
SHORT = ("--set", "train.max_steps=3", "--set", "train.batch_size=1024")


def track(strategy, *, room_bytes=None, gpus=1):
    job = TrainJob(
        name="tiny",
        strategy=strategy,
        resources=Resources(gpus=gpus),
        data=Data(name="digits"),
        train=Train(batch_size=32, evaluate_every_epochs=0),
    )
    asked = (job_to_dict(job), "cuda", room_bytes)
    return call_apart("hpcdist.planning.memory:track", asked, limit_s=100)


def test_the_tracker_counts_what_a_rank_holds_and_finds_the_largest_batch():
    # Parameters, gradients, and AdamW's two values for each.
    room_bytes = 16 * PARAMETERS + 1.2e6
    whole_bytes, largest = track("single", room_bytes=room_bytes)
    per_image = (whole_bytes - 16 * PARAMETERS) / 32
    assert 5e3 < per_image < 1e5  # about 25 kB
    assert largest == pytest.approx(1.2e6 / per_image, rel=0.15)
    sharded_bytes, largest = track("fsdp", gpus=8)
    assert largest is None
    # Of parameters, gradients and states, a rank has an eighth, and the whole of a unit at a time.
    assert 2 * PARAMETERS < sharded_bytes < whole_bytes - 4 * PARAMETERS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_probe_ends_with_its_command(tmp_path, number):
    words = ("plan", "ddp", "--local", "--runs", str(tmp_path / "runs"), "--probe", "60")
    command, environment = [sys.executable, "-m", "hpcdist", *words], {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=os.environ | environment) as process:
        wait_for(lambda: [*tmp_path.glob("hpcdist-probe-*/*/events/rank-*")], limit_s=60)
        process.send_signal(number)
    assert process.returncode == 130
    assert not [*tmp_path.glob("hpcdist-probe-*")]


def test_a_probe_says_why_it_tells_nothing(tmp_path):
    (tmp_path / "own.py").write_text(FAILS_IN_TRAINING)
    for job, why in {
        ("ddp", "--set", "model.name=own:Net"): "the probe failed: .*no training today",
        ("own.py",): "only a trainer tells how many steps it takes",
    }.items():
        words = ("plan", *job, "--local", "--runs", "/proc/none", "--probe", "60")
        command = (sys.executable, "-m", "hpcdist", *words)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert re.search(f"^time +not known: .*{why}", done.stdout, re.MULTILINE)


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
    (old := tmp_path / "runs" / ".plans" / "old").touch()
    os.utime(old, (0, 0))
    again = call("plan", *job)
    assert not old.exists()
    assert "from 1 run of this size" in again
    assert "measured / planned of 1 run: duration" in again
    # Runs of ddp say nothing about what FSDP takes beside its tensors.
    other = json.loads(call("plan", "fsdp", "--local", "--json"))["memory"]
    assert other["peak_bytes"] == pytest.approx(1.2 * other["estimate_bytes"])
