"""What a rank's loop leaves in its event file."""

import math
from pathlib import Path

from hpcdist.rank.recorder import StepRecorder
from hpcdist.runs.events import HISTOGRAM_RATIO, EventWriter, read_events


def test_a_window_has_the_steps_before_its_end_and_the_losses_that_are_known(tmp_path):
    events = EventWriter(tmp_path / "events.jsonl")
    now_s = 100.0
    recorder = StepRecorder(events, window_s=math.inf, clock=lambda: now_s)
    for bucket, loss in ((-2, 1.0), (3, None), (9, 2.0)):
        now_s += HISTOGRAM_RATIO**bucket  # the middle of the bucket
        recorder.mark("data_wait")
        recorder.step(samples=1, loss=loss, learning_rate=0.1 * bucket)
    stepped_s = now_s - 100.0
    now_s += 60.0
    recorder.mark("data_wait")  # of a step that is never finished
    now_s += 540.0
    recorder.finish()
    events.close()
    [window] = read_events(tmp_path / "events.jsonl")
    # The counts of buckets that follow each other, but for long gaps.
    assert window["histogram"] == {"-2": [1, 0, 0, 0, 0, 1], "9": [1]}
    assert (window["wall_s"], window["after_s"]) == (round(stepped_s, 9), 600.0)
    assert window["phases_s"] == {"data_wait": window["wall_s"]}
    assert (window["loss"], window["mean_loss"], window["learning_rate"]) == (2.0, 1.5, 0.9)


def test_a_full_disk_ends_recording_and_nothing_else(capfd):
    events = EventWriter(Path("/dev/full"))
    for _ in range(2):
        events.write({"event": "note", "message": "lost"})
    events.close()
