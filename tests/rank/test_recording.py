"""What a rank's loop leaves in its event file."""

import math
from pathlib import Path

import pytest

from hpcdist.rank.recorder import StepRecorder
from hpcdist.runs.events import HISTOGRAM_RATIO, EventWriter, read_events


@pytest.fixture
def record(tmp_path):
    """Call it with what a loop does with a recorder and its clock; the window that is written."""

    def window_of(loop):
        path = tmp_path / "events.jsonl"
        events = EventWriter(path)
        clock = [100.0]
        recorder = StepRecorder(events, window_s=math.inf, clock=lambda: clock[0])

        def wait(seconds):
            clock[0] += seconds

        loop(recorder, wait)
        recorder.finish()
        events.close()
        [window] = read_events(path)
        return window

    return window_of


@pytest.mark.parametrize(
    ("buckets", "histogram"),
    [
        ([-2, 60, 61, 9], {"-2": [1], "9": [1], "60": [1, 1]}),
        ([-2, 3, 8], {"-2": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]}),  # the longest gaps
        ([-2, 4], {"-2": [1], "4": [1]}),  # longer ones
    ],
)
def test_the_histogram_counts_the_steps_of_buckets_that_follow_each_other(
    record, buckets, histogram
):
    def loop(recorder, wait):
        for bucket in buckets:
            wait(HISTOGRAM_RATIO**bucket)  # the middle of the bucket
            recorder.step(samples=1)

    assert record(loop)["histogram"] == histogram


def test_phases_are_summed_up_and_what_comes_after_the_last_step_is_no_part_of_its_window(record):
    def loop(recorder, wait):
        for _ in range(2):
            wait(0.25)
            recorder.mark("data_wait")
            recorder.step(samples=1)
        wait(60.0)
        recorder.mark("data_wait")  # of a step that is never finished
        wait(540.0)

    window = record(loop)
    assert (window["wall_s"], window["after_s"]) == (0.5, 600.0)
    assert window["phases_s"] == {"data_wait": 0.5}


@pytest.mark.parametrize(
    ("losses", "learned"),
    [
        ([1.0, 2.0, 6.0], {"loss": 6.0, "mean_loss": 3.0}),
        ([1.0, None, 2.0], {"loss": 2.0, "mean_loss": 1.5}),
        ([None, None], {}),
    ],
)
def test_a_window_has_the_last_loss_and_the_mean_of_all(record, losses, learned):
    def loop(recorder, _):
        for number, loss in enumerate(losses):
            recorder.step(samples=1, loss=loss, learning_rate=0.1 / (number + 1))

    window = record(loop)
    assert {key: window[key] for key in ("loss", "mean_loss") if key in window} == learned
    assert window["learning_rate"] == 0.1 / len(losses)


def test_a_full_disk_ends_recording_and_nothing_else(capfd):
    events = EventWriter(Path("/dev/full"))
    for _ in range(2):
        events.write({"event": "note", "message": "lost"})
    events.close()
