"""A script's own loop, recorded by two lines: its steps are in the summary and the verdict."""

import subprocess
import sys
from functools import partial

import pytest

from hpcdist import record
from hpcdist.summary import summarize

LOOP = """
import time
from hpcdist import record

record.start()
for step in range(50):
    time.sleep(0.001)
    record.mark("data_wait")
    time.sleep(0.01)
    record.mark("forward_backward")
    record.step(samples=32, loss=1.0 / (step + 1))
record.evaluate(loss=0.5, accuracy=0.9, samples=100)
"""


def test_steps_of_a_script_are_in_the_summary_and_outside_a_run_nothing_is_done(
    launch, write_script
):
    script = write_script(LOOP)
    launched = launch(script, gpus=2)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert launched.verdict().kind == "done"
    (summary,) = summarize([launched.run], {}).runs
    assert summary.together is False
    assert "trained apart from each other" in summary.not_compared_because
    assert summary.steps == 50
    assert summary.samples_per_s is not None
    assert summary.final.accuracy == 0.9
    assert summary.phase_s["forward_backward"] > summary.phase_s["data_wait"] > 0
    windows = [event for event in launched.events(1) if event["event"] == "steps"]
    assert sum(window["steps"] for window in windows) == 50


COUNTED = """
import torch
from hpcdist import record

kept = torch.tensor([True, True, False])
record.start()
for accuracy in (41.0, 0.5, 55.0):
    record.step(samples=kept.sum(), loss=torch.tensor(0.5))
    record.evaluate(loss=torch.tensor(0.5), accuracy=torch.tensor(accuracy), samples=kept.sum())
"""


def test_samples_may_be_counted_by_torch_and_a_percentage_is_no_accuracy(launch, write_script):
    launched = launch(write_script(COUNTED))
    assert launched.verdict().kind == "done"
    counted = {"steps": 0, "evaluate": 0}
    for event in launched.events(0):
        if event["event"] in counted:  # a slow machine may take several windows for the steps
            counted[event["event"]] += event["samples"]
    assert counted == {"steps": 6, "evaluate": 6}
    found = [event.get("accuracy") for event in launched.events(0) if event["event"] == "evaluate"]
    assert found == [None, 0.5, None]
    (summary,) = summarize([launched.run], {}).runs
    assert summary.final.accuracy is None
    (told,) = summary.notes  # once
    assert "accuracy must be a share from 0 to 1" in told
    assert told in launched.log(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(record.mark, "lunch"), "'lunch' is not a phase; phases are data_wait"),
        (partial(record.flops, per_sample=0), "per_sample is 0, must be a number above 0"),
        (
            partial(record.flops, per_sample=1e9, precision="half"),
            "'half' is not a precision; known are fp32, tf32",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(call, message):
    with pytest.raises(ValueError, match=message):
        call()


WATCHED = """
import torch
from torch import nn
from hpcdist import record

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.randn(80, 8), batch_size=4)
record.start(first_step=100, model=model)
record.flops(per_sample=2 * 2 * 8)
for epoch in range(2):
    for batch in record.batches(data):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record.step(samples=len(batch), loss=loss, learning_rate=optimizer.param_groups[0]["lr"])
    record.evaluate(loss=1.0)
"""


def test_a_loop_that_marks_nothing_has_its_phases_seen_by_hooks(launch, write_script):
    launched = launch(write_script(WATCHED))
    assert launched.verdict().kind == "done"
    assert launched.log(0) == ""  # no warning of a loss that has a graph behind it
    (summary,) = summarize([launched.run], {}).runs
    assert summary.steps == 140
    phases = {"data_wait", "forward_backward", "optimizer", "other"}  # nothing to wait for alone
    assert summary.phase_s.keys() == phases
    evaluated = [event["step"] for event in launched.events(0) if event["event"] == "evaluate"]
    assert evaluated == [120, 140]
    assert summary.flops.per_sample == 32
    assert summary.flops.per_s == pytest.approx(32 * summary.samples_per_s.mean)


TOGETHER = WATCHED.replace(
    "model = nn.Linear(8, 1)",
    """
import sys
torch.distributed.init_process_group("gloo")
model = nn.Linear(8, 1)
if "--wrap" in sys.argv:
    model = nn.parallel.DistributedDataParallel(model)
""",
)


@pytest.mark.parametrize(
    ("script", "arguments", "why"),
    [
        pytest.param(WATCHED, [], "they joined no process group", id="no group"),
        pytest.param(TOGETHER, [], "no collective operation ran", id="model not wrapped"),
        pytest.param(TOGETHER, ["--wrap"], None, id="wrapped"),
    ],
)
def test_ranks_that_train_apart_have_no_shares_of_communication_and_no_speedup(
    launch, write_script, script, arguments, why
):
    launched = launch(write_script(script), *arguments, gpus=2)
    assert launched.verdict().kind == "done"
    groups = [event for event in launched.events(1) if event["event"] == "group"]
    assert groups[-1]["size"] == (0 if script is WATCHED else 2)
    (summary,) = summarize([launched.run], {}).runs
    together = why is None
    assert summary.together is together
    assert (summary.cell is None) == (not together)
    assert ("exposed_communication" in summary.phase_s) == together
    assert (summary.parts_s["communication"] > 0) == together
    if why is not None:
        assert why in summary.not_compared_because
