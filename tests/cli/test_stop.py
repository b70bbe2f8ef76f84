"""A warned training ends with 75, and goes on."""

import json
import os
import signal
import subprocess

import msgspec
import pytest
from held_model import HELD_MODEL
from waiting import wait_for

from hpcdist.cli.runs import describe_run
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Condition

LIMIT_S = 90
JOB = """
workload: train
strategy: ddp
resources: {nodes: 1, gpus: 2}
launch: {device: cpu}
data: {name: digits, train_samples: 200, test_samples: 100}
model: {name: "held:HeldModel"}
train: {epochs: 4, batch_size: 8, num_threads: 1}
checkpoint: {every_epochs: 3}
record: {window_s: 0.05}
"""


def stepped(run):
    return any('"steps"' in file.read_text() for file in (run / "events").glob("rank-00000*.jsonl"))


@pytest.mark.timeout(360)
def test_a_warned_training_ends_with_75_and_goes_on_as_its_last_line_says(hpcdist):
    hpcdist.write("job.yaml", JOB)
    hpcdist.write("held.py", HELD_MODEL)
    waiting = hpcdist.start(
        "submit", "job.yaml", "--local", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    run = wait_for(lambda: hpcdist.runs)[0]
    wait_for(lambda: stepped(run))
    for agent in (run / "launch").glob("agent-*.json"):
        os.kill(json.loads(agent.read_text())["process"]["pid"], signal.SIGUSR2)
    said, _ = waiting.communicate(timeout=LIMIT_S)
    assert waiting.returncode == 75, said
    assert "a checkpoint is saved" in said.splitlines()[-1]
    verdict = json.loads((run / "verdict.json").read_text())
    assert 0 < verdict["step"] < 4 * (200 // 16)
    hpcdist.write("released", "")
    assert f"continue with: hpcdist resume {run.name}" in said
    resumed = hpcdist("resume", run.name)
    assert resumed.returncode == 0, resumed.stderr
    assert f"continues from its checkpoint of step {verdict['step']}" in resumed.stderr


def test_a_run_says_that_it_is_to_go_on_for_as_long_as_it_may(hpcdist):
    """As it looks between two of its lives, and when none has come."""
    hpcdist.write("nothing.py", "")
    assert hpcdist("submit", "nothing.py", "--local", "--no-requeue").returncode == 0
    run = Run(hpcdist.runs[0])
    assert run.read_spec().outline.launch.requeue is False
    verdict = msgspec.structs.replace(
        run.read_verdict(), kind="preempted", state="preempted", message="stopped at step 7"
    )
    run.write_attempt_verdict(verdict)
    assert "so far" not in hpcdist("status").stdout  # its verdict is final
    run.verdict_file.unlink()
    sentence = (
        "attempt 0 ended early: stopped at step 7; starting again when the scheduler "
        "restarts the job"
    )
    assert describe_run(run, Condition(state="pending"))["last_attempt"] == sentence
    assert "verdict    stopped at step 7" in hpcdist("status").stdout  # its process is gone
    [described] = json.loads(hpcdist("status", "--json").stdout)
    assert (described["state"], described["last_attempt"]) == ("lost", None)
