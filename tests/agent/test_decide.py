"""How a rank ended, its last event, and from how all ended to the one that failed first."""

import json
import signal

import pytest
from rank_ends import rank_end
from rank_places import place

from hpcdist.agent.messages import Exited
from hpcdist.agent.outcome import ends, failure
from hpcdist.job.spec import ScriptJob, TrainJob
from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.context import RankOrder
from hpcdist.runs.run import Run


def end(rank, *, at=0.0, node=0, **fields):
    return rank_end(rank, node=node, time_s=at, **fields)


def decide(*ends):
    return failure.decide(ends)


WELL = {"exit_code": 0, "finished": True}
BROKEN = {"exit_code": 1, "exception": "RuntimeError", "message": "Connection closed by peer [::1]"}
BACKEND_ERROR = "torch.distributed.DistBackendError"
NO_SHM = "Error while creating shared memory segment: No space left on device"
OUT_OF_MEMORY = {"signal": "SIGKILL", "out_of_memory": True, "message": "the ranks use 9 GB"}
OF_NCCL = (
    "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error\nLast error:\n"
    "Failed to CUDA calloc 4096 bytes: Cuda failure 2 'out of memory'"
)
ENDS = [
    # (whether it is only a victim, how the rank ended)
    (True, BROKEN),
    (True, BROKEN | {"exception": BACKEND_ERROR, "message": "NCCL error"}),
    (True, BROKEN | {"message": "[..gloo/transport/tcp/pair.cc:561] Read timeout [127.0.0.1]:21"}),
    (
        True,
        {"signal": "SIGABRT", "message": "[Rank 1] Watchdog caught collective operation timeout"},
    ),
    (True, {"signal": "SIGTERM", "stopped": True}),
    (True, {"exit_code": 143, "stopped": True}),
    (False, {"signal": "SIGABRT", "message": "double free or corruption (!prev)"}),
    (False, {"exit_code": 0}),
    (False, BROKEN | {"exception": "ValueError"}),
    (False, BROKEN | {"message": "CUDA error: an illegal memory access"}),
    (False, OUT_OF_MEMORY),
    (False, BROKEN | {"exception": BACKEND_ERROR, "message": NO_SHM}),
]


@pytest.mark.parametrize(("is_victim", "fields"), ENDS)
def test_a_cause_is_told_from_a_victim(is_victim, fields):
    assert failure.is_victim(end(1, **fields)) is is_victim
    other = {"signal": "SIGSEGV", "at": 5.0} if is_victim else BROKEN
    verdict = decide(end(0, **other), end(1, **{"at": 1.0} | fields))
    first = 0 if is_victim else 1
    assert (verdict.first.rank, verdict.victims) == (first, [1 - first])


def test_the_earliest_cause_comes_first_and_others_failed_too():
    verdict = decide(
        end(0, at=3.0, exit_code=1, exception="ValueError"),
        end(1, at=2.0, signal="SIGABRT"),
        end(2, at=1.0, **BROKEN),
        end(3, **WELL),
    )
    assert (verdict.first.rank, verdict.victims) == (1, [2])
    assert verdict.message == (
        "rank 1 (node 0, host h) failed first: killed by SIGABRT; "
        "rank 0 failed too, later; rank 2 ended because of it"
    )
    verdict = decide(*(end(rank, at=rank, **BROKEN) for rank in range(3)), end(3, **WELL))
    assert (verdict.first.rank, verdict.victims) == (0, [1, 2])
    assert "rank 3 had already ended well" in verdict.message
    verdict = decide(end(0, at=4.0, **WELL), end(1, **WELL))
    assert (verdict.kind, verdict.exit_code_of_run, verdict.time_s) == ("done", 0, 4.0)


FRAMES = "".join(f'  File "/lib/part_{number}.py", line 7, in call\n' for number in range(20))
TRACEBACK = f"Traceback (most recent call last):\n{FRAMES}OSError: cut\n"
OF_WORKER = "Caught OSError in DataLoader worker process 1.\nOriginal "


def raised(exception, message=""):
    return {"exit_code": 1, "exception": exception, "message": message}


@pytest.mark.parametrize(
    ("fields", "kind", "sentence"),
    [
        ({"exit_code": 0}, "exit", "exited with code 0 before its workload was done (os._exit?)"),
        ({"signal": "SIGSEGV", "step": 4}, "signal", "after step 4: killed by SIGSEGV"),
        (raised("my.Error", "\n first\nsecond"), "exception", "my.Error: first"),
        (OUT_OF_MEMORY, "out_of_memory", "out of memory: the ranks use 9 GB"),
        # Of a traceback in a message the last words are shown.
        (raised("RuntimeError", OF_WORKER + TRACEBACK), "exception", "process 1: OSError: cut"),
        (raised("RuntimeError", TRACEBACK), "exception", "RuntimeError: OSError: cut"),
        # Exceptions about memory are known by type and words.
        (
            raised("torch.OutOfMemoryError", "CUDA out of memory."),
            *("out_of_memory", "failed first: out of memory: torch.OutOfMemoryError: CUDA"),
        ),
        (raised("torch.AcceleratorError", "CUDA error: out of memory"), "out_of_memory", ""),
        (raised("torch.distributed.DistBackendError", OF_NCCL), "out_of_memory", ""),
        (raised("RuntimeError", "DefaultCPUAllocator: can't allocate memory"), "out_of_memory", ""),
        (raised("torch.AcceleratorError", "CUDA error: device-side assert"), "exception", ""),
        (raised("ValueError", "out of memory"), "exception", "failed first: ValueError: out of"),
    ],
)
def test_kinds_and_sentences(fields, kind, sentence):
    verdict = decide(end(0, **fields))
    assert verdict.kind == kind
    assert sentence in verdict.message
    assert "part_" not in verdict.message


# One rank.


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path, "x")


def order_in(run):
    fields = place(ranks_per_node=2, rank=1).place_fields()
    return RankOrder(run_path=str(run.path), environment={}, **fields)


def ended(run, status=signal.SIGKILL, *, report=None, job=None, **options):
    """How rank 1 ended, which had left a report."""
    if report is not None:
        text = report if isinstance(report, str) else json.dumps(report)
        run.error_file(1).write_text(text)
    progress = ProgressBoard(2).read(1)
    exited = Exited(local_rank=1, status=status, time_s=50.0)
    job = job or TrainJob(name="x")
    return ends.rank_end(run, job, order_in(run), progress, exited, **options)


def test_an_exception_counts_from_when_it_was_raised_by_the_clock_of_node_0(run):
    report = {"exception": "ValueError", "text": "x", "traceback": "t", "time_s": 40.0}
    end = ended(run, 1 << 8, report=report, stopped_s=45.0)
    assert (end.report.exception, end.time_s, end.stopped) == ("ValueError", 40.0, False)
    assert ended(run, 1 << 8, stopped_s=39.0).stopped
    # What was raised is not what ended a rank that a signal killed.
    assert ended(run).report.exception is None
    assert ended(run, 1 << 8, report='{"exception": "Val').report.exception is None
    assert ended(run, clock_offset_s=-8.5).time_s == 41.5
    assert [ended(run, number).signal for number in (signal.SIGBUS, 60)] == ["SIGBUS", "signal 60"]


def test_secrets_in_what_a_rank_said_are_starred_out(run, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "from-environment")
    text = "bad hunter2 from-environment ghp_0123456789 https://ann:pw@host/x"
    report = {"exception": "E", "text": text, "traceback": f"E: {text}", "time_s": 4.0}
    job = ScriptJob(name="x", script="x.py", args=["--password", "hunter2"])
    end = ended(run, 1 << 8, report=report, job=job)
    assert end.report.text == "bad *** *** *** https://***@host/x"
    assert end.report.traceback == f"E: {end.report.text}"
