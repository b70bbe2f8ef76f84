"""When runs came to an accuracy: on one clock, over restarts, and where they never did."""

import pytest
from summary_text import in_words, printed

from hpcdist.job.goal import Goal
from hpcdist.summary import summarize


@pytest.fixture
def add_epochs(events):
    """Add a rank: epochs of 10 steps that take 10 s, each with a test of 1 s after it."""

    def add(run, accuracies, *, rank=0, world_size=1):
        made = [events.start(rank, world_size=world_size)]
        for epoch, accuracy in enumerate(accuracies, 1):
            step, ended_s = 10 * epoch, 1000.0 + 11 * epoch - 1
            made.append(events.window(step=step, times_s=[1.0] * 10, samples=100, time_s=ended_s))
            test = {"time_s": ended_s + 1, "epoch": epoch, "step": step, "accuracy": accuracy}
            made.append({"event": "evaluate", "loss": 1 - accuracy, **test})
        events.write(run, rank, [*made, events.end(time_s=ended_s + 1, step=step)])

    return add


def test_the_table_has_the_time_and_the_samples_of_each_size(make_run, add_epochs):
    one, two = make_run("one"), make_run("two", gpus=2)
    add_epochs(one, [0.5, 0.8, 0.9, 0.95])
    for rank in range(2):
        add_epochs(two, [0.6, 0.95], rank=rank, world_size=2)
    text = printed([one, two], goal=Goal("accuracy", 0.95))
    ends = [line.split()[-3:-1] for line in text.splitlines()]
    assert ["44.0", "400"] in ends
    assert ["22.0", "400"] in ends
    assert "not reached" in in_words([one, two], goal=Goal("accuracy", 0.97))
    found = summarize([one], {}, goal=Goal("loss", 0.25)).runs[0].time_to_accuracy
    assert (found.goal, found.is_reached, found.best) == ("loss", True, pytest.approx(0.05))
    assert (found.time_s, found.step, found.samples) == (22.0, 20, 200.0)
    assert "the goal is a test loss of 0.25" in in_words([one], goal=Goal("loss", 0.25))
