"""How a rank ended, and its last event."""

import json
import signal

import pytest
from rank_places import place

from hpcdist.agent.messages import Exited
from hpcdist.agent.outcome.ends import close_event_file, rank_end
from hpcdist.job.spec import ScriptJob, TrainJob
from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.context import RankOrder
from hpcdist.runs.events import EventWriter, read_events
from hpcdist.runs.run import Run


@pytest.fixture
def order(tmp_path):
    run = Run.create(tmp_path, "x")
    fields = place(ranks_per_node=2, rank=1).place_fields()
    return run, RankOrder(run_path=str(run.path), environment={}, **fields)


def ended(order, *, status=signal.SIGKILL, **options):
    run, rank_order = order
    board = ProgressBoard(2)
    exited = Exited(local_rank=1, status=status, time_s=50.0)
    return rank_end(run, TrainJob(name="x"), rank_order, board.read(1), exited, **options)


def test_times_are_taken_to_the_clock_of_node_0(order):
    assert ended(order, clock_offset_s=-8.5).time_s == 41.5


def test_an_exception_counts_from_when_it_was_raised_not_from_when_the_rank_had_left(order):
    run, _ = order
    report = {"exception": "ValueError", "text": "x", "traceback": "t", "time_s": 40.0}
    run.error_file(1).write_text(json.dumps(report))
    end = ended(order, status=1 << 8, stopped_s=45.0)
    assert (end.report.exception, end.time_s, end.stopped) == ("ValueError", 40.0, False)
    end = ended(order, status=1 << 8, stopped_s=39.0)
    assert end.stopped
    # What was raised is not what ended a rank that a signal killed.
    assert ended(order, status=signal.SIGKILL).report.exception is None
    run.error_file(1).write_text('{"exception": "Val')
    assert ended(order, status=1 << 8).report.exception is None


def test_secrets_in_what_a_rank_said_are_starred_out(order, monkeypatch):
    run, rank_order = order
    monkeypatch.setenv("DB_PASSWORD", "from-environment")
    text = "bad hunter2 from-environment ghp_0123456789 https://ann:pw@host/x"
    report = {"exception": "E", "text": text, "traceback": f"E: {text}", "time_s": 4.0}
    run.error_file(1).write_text(json.dumps(report))
    job = ScriptJob(name="x", script="x.py", args=["--password", "hunter2"])
    progress = ProgressBoard(2).read(1)
    exited = Exited(local_rank=1, status=1 << 8, time_s=50.0)
    end = rank_end(run, job, rank_order, progress, exited)
    assert end.report.text == "bad *** *** *** https://***@host/x"
    assert end.report.traceback == f"E: {end.report.text}"


def test_signals_have_names(order):
    assert ended(order, status=signal.SIGBUS).signal == "SIGBUS"
    assert ended(order, status=60).signal == "signal 60"


@pytest.mark.parametrize(
    "before", [b"", b'{"event":"start","time_s":1}\n', b'{"event":"start","ti']
)
def test_event_files_are_closed_once_and_whatever_is_there(order, before):
    run, rank_order = order
    path = run.event_file(1)
    path.write_bytes(before)
    for _ in range(2):
        close_event_file(run, rank_order, ended(order), max_rss_bytes=None)
    assert [event["event"] for event in read_events(path)].count("end") == 1


def test_an_end_that_the_rank_wrote_itself_stays_the_last_line(order):
    run, rank_order = order
    writer = EventWriter(run.event_file(1))
    writer.write({"event": "end", "status": "done"})
    writer.close()
    close_event_file(run, rank_order, ended(order), max_rss_bytes=None)
    assert len(read_events(run.event_file(1))) == 1


def test_what_a_rank_says_before_it_aborts_is_not_lost_among_the_segments_of_a_bar(order):
    run, _ = order
    bar = b"".join(b"\r %d%%|%s|" % (number % 100, b"#" * 60) for number in range(4000))
    crash = b"Fatal Python error: Aborted\n\nCurrent thread 0x1:\n  File a, line 1\n"
    run.log_file(1).write_bytes(b"the reason\n" + bar + b"\nterminate called\n" + crash)
    end = ended(order, status=signal.SIGABRT)
    assert end.report.text.splitlines() == ["the reason", f" 99%|{'#' * 60}|", "terminate called"]
    assert end.report.traceback.startswith("Fatal Python error: Aborted\n\nCurrent thread")
    crashed = ended(order, status=signal.SIGSEGV)
    assert (crashed.report.text, crashed.report.traceback) == ("", end.report.traceback)


@pytest.mark.parametrize(
    ("message", "exception", "text"),
    [
        ({"message": "KeyError: 'a'", "extraInfo": {"py_callstack": "T"}}, "KeyError", "'a'"),
        ({"message": "KeyboardInterrupt: ", "errorCode": 4}, "KeyboardInterrupt", ""),
        ({"message": "ValueError: " + "x" * 20_000}, "ValueError", None),
        ({"message": 3}, None, None),
        (None, None, None),
    ],
    ids=["traceback", "no text", "long", "wrong", "nothing"],
)
def test_what_torchelastic_recorded_of_an_exception_is_read(order, message, exception, text):
    run, _ = order
    run.error_file(1).write_text(json.dumps({"message": message}))
    end = ended(order, status=4 << 8, stopped_s=45.0)
    assert (end.exit_code, end.report.exception, end.time_s) == (4, exception, 50.0)
    assert len(end.report.text) < 11_000
    if text is not None:
        assert end.report.text == text
    assert ended(order, status=signal.SIGKILL).report.exception is None  # it had been caught
