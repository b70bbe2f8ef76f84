import pytest

from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.recorder import StepRecorder
from hpcdist.rank.timing import GpuTimer
from hpcdist.runs.events import EventWriter, read_events


class Stream:
    """A GPU whose clock the test sets: events take the time at which their turn comes."""

    def __init__(self):
        self.queued = []

    def make_event(self):
        return Event(self)

    def run(self, *times_ms):
        for time_ms in times_ms:
            self.queued.pop(0).time_ms = time_ms

    def run_until(self, event):
        while event.time_ms is None:
            self.run(0)


class Event:
    def __init__(self, stream):
        self._stream = stream
        self.time_ms = None

    def record(self):
        self._stream.queued.append(self)

    def query(self):
        return self.time_ms is not None

    def synchronize(self):
        self._stream.run_until(self)

    def elapsed_time(self, end_event):
        return end_event.time_ms - self.time_ms


def start_timer(folder, **options):
    stream, board = Stream(), ProgressBoard(1)
    events = EventWriter(folder / "events.jsonl")
    timer = GpuTimer(
        lambda clock: StepRecorder(events, board.slot(0), clock=clock, **options),
        stream.make_event,
    )
    return stream, events, board, timer


def test_marks_on_a_gpu_are_told_with_its_own_times_once_it_has_passed_them(tmp_path):
    stream, _, board, timer = start_timer(tmp_path)
    timer.begin()
    for _ in range(2):
        timer.mark("data_wait")
        timer.note_last_gradient()
        timer.mark_backward()
        timer.mark("optimizer")
        timer.step(samples=8)
    assert board.read(0).step is None  # nothing has run yet
    stream.run(1000, 1010, 1040, 1050, 1055, 1055)
    timer.begin()
    timer.step(samples=8)  # an empty step: what has run by now is told
    assert board.read(0).step == 1
    stream.run(1060, 1090, 1100, 1105, 1105, 1105, 1106)
    timer.finish()
    assert board.read(0).step == 3
    [window] = read_events(tmp_path / "events.jsonl")
    assert window["steps"] == 3
    assert window["step_time_s"]["sum"] == pytest.approx(0.106)
    assert window["phases_s"] == pytest.approx(
        {
            "data_wait": 0.015,
            "forward_backward": 0.060,
            "exposed_communication": 0.020,
            "optimizer": 0.010,
        }
    )


def test_steps_that_a_gpu_still_has_to_run_at_an_epochs_end_belong_to_that_epoch(tmp_path):
    _, events, board, timer = start_timer(tmp_path, window_s=0.0)
    for epoch in (0, 1):
        timer.set_epoch(epoch)
        timer.begin()
        for _ in range(3):
            timer.step(samples=8)
        timer.wait()
        assert board.read(0).step == 3 * (epoch + 1)
        events.write({"event": "epoch", "epoch": epoch + 1})
    timer.finish()
    written = read_events(tmp_path / "events.jsonl")
    assert [(event["event"], event["epoch"]) for event in written] == [
        *[("steps", 0)] * 3,
        ("epoch", 1),
        *[("steps", 1)] * 3,
        ("epoch", 2),
    ]
