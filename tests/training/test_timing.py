import pytest

from hpcdist.events import EventWriter, read_events
from hpcdist.progress import ProgressBoard
from hpcdist.recording import StepRecorder
from hpcdist.training.timing import GpuTimer


class Stream:
    """A GPU whose clock the test sets: events take the time at which their turn comes."""

    def __init__(self):
        self.queued = []

    def make_event(self):
        return Event(self)

    def run(self, *times_ms):
        for time_ms in times_ms:
            self.queued.pop(0).time_ms = time_ms


class Event:
    def __init__(self, stream):
        self._stream = stream
        self.time_ms = None

    def record(self):
        self._stream.queued.append(self)

    def query(self):
        return self.time_ms is not None

    def synchronize(self):
        assert self.query()

    def elapsed_time(self, end_event):
        return end_event.time_ms - self.time_ms


def test_marks_on_a_gpu_are_told_with_its_own_times_once_it_has_passed_them(tmp_path):
    stream = Stream()
    events = EventWriter(tmp_path / "events.jsonl")
    board = ProgressBoard(1)
    timer = GpuTimer(
        lambda clock: StepRecorder(events, board.slot(0), clock=clock), stream.make_event
    )
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
    [window] = read_events(tmp_path / "events.jsonl").events
    assert window["steps"] == 3
    assert window["step_time_s"]["sum"] == pytest.approx(0.106)
    phases = {phase: times["sum"] for phase, times in window["phases_s"].items()}
    assert phases == pytest.approx(
        {
            "data_wait": 0.015,
            "forward_backward": 0.060,
            "exposed_communication": 0.020,
            "optimizer": 0.010,
        }
    )
