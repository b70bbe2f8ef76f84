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

torch.distributed.init_process_group("gloo")
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.randn(80, 8), batch_size=4)
record.start(first_step=100, model=model)
record.flops(per_sample=2 * 2 * 8)
for accuracy in (0.5, 55.0):
    for batch in record.batches(data):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples = torch.ones(len(batch), dtype=torch.bool).sum()
        record.step(samples=samples, loss=loss, learning_rate=optimizer.param_groups[0]["lr"])
    record.evaluate(loss=torch.tensor(1.0), accuracy=torch.tensor(accuracy), samples=samples)
"""


def test_hooks_see_the_phases_of_a_loop_that_marks_nothing_and_whether_ranks_train_together(
    launch, write_script
):
    """The model is not wrapped: the ranks joined a group, and exchange nothing in it."""
    launched = launch(write_script(WATCHED), gpus=2)
    assert launched.verdict().kind == "done"
    (summary,) = summarize([launched.run], {}).runs
    assert summary.steps == 140
    assert summary.phase_s.keys() == {"data_wait", "forward_backward", "optimizer", "other"}
    evaluated = [event for event in launched.events(0) if event["event"] == "evaluate"]
    assert [event["step"] for event in evaluated] == [120, 140]
    assert sum(event["samples"] for event in launched.events(0) if event["event"] == "steps") == 160
    assert summary.flops.per_sample == 32
    assert summary.flops.per_s == pytest.approx(32 * summary.samples_per_s.mean)
    # A percentage is no accuracy; and nothing else is printed, such as of a loss with a graph.
    assert [event.get("accuracy") for event in evaluated] == [0.5, None]
    assert summary.final.accuracy is None
    (told,) = summary.notes
    assert "accuracy must be a share from 0 to 1" in told
    assert launched.log(0).splitlines() == [f"note: {told}"]

    groups = [event for event in launched.events(1) if event["event"] == "group"]
    assert groups[-1]["size"] == 2
    assert (summary.together, summary.cell, summary.parts_s["communication"]) == (False, None, 0)
    assert "no collective operation ran" in summary.not_compared_because
