"""From how the ranks ended to the one that failed first."""

import pytest
from rank_ends import rank_end

from hpcdist.agent.outcome import failure


def end(rank, *, at=0.0, node=0, **fields):
    return rank_end(rank, node=node, time_s=at, **fields)


def decide(*ends):
    return failure.decide(ends)


BROKEN = {"exit_code": 1, "exception": "RuntimeError", "message": "Connection closed by peer [::1]"}
STOPPED = {"signal": "SIGTERM", "stopped": True}


@pytest.mark.parametrize(
    "fields",
    [
        BROKEN,
        BROKEN | {"exception": "torch.distributed.DistBackendError", "message": "NCCL error"},
        BROKEN | {"exception": "torch.distributed.DistNetworkError", "message": "timed out"},
        BROKEN | {"message": "[..gloo/transport/tcp/pair.cc:561] Read timeout [127.0.0.1]:21"},
        {
            "signal": "SIGABRT",
            "message": "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
        },
        STOPPED,
        {"signal": "SIGKILL", "stopped": True},
        {"exit_code": 143, "stopped": True},
        {"exit_code": 1, "exception": "SystemError", "message": "told to end", "stopped": True},
    ],
)
def test_victims(fields):
    assert failure.is_victim(end(1, **fields))
    verdict = decide(end(0, at=5.0, signal="SIGSEGV"), end(1, at=1.0, **fields))
    assert (verdict.first.rank, verdict.victims) == (0, [1])


@pytest.mark.parametrize(
    "fields",
    [
        {"signal": "SIGKILL"},
        {"signal": "SIGABRT"},
        {"signal": "SIGABRT", "message": "double free or corruption (!prev)"},
        {"exit_code": 3},
        {"exit_code": 0},
        BROKEN | {"exception": "ValueError"},
        BROKEN | {"exception": "ConnectionResetError"},
        BROKEN | {"message": "CUDA error: an illegal memory access"},
        {"signal": "SIGKILL", "out_of_memory": True, "message": "too much"},
        BROKEN
        | {
            "exception": "torch.distributed.DistBackendError",
            "message": "Error while creating shared memory segment: No space left on device",
        },
    ],
)
def test_causes(fields):
    assert not failure.is_victim(end(1, **fields))
    verdict = decide(end(0, at=0.5, **BROKEN), end(1, at=1.0, **fields))
    assert (verdict.first.rank, verdict.victims) == (1, [0])


def test_the_earliest_cause_comes_first_and_others_failed_too():
    verdict = decide(
        end(0, at=3.0, exit_code=1, exception="ValueError"),
        end(1, at=2.0, signal="SIGABRT"),
        end(2, at=1.0, **BROKEN),
        end(3, exit_code=0, finished=True),
    )
    assert (verdict.first.rank, verdict.victims) == (1, [2])
    assert verdict.message == (
        "rank 1 (node 0, host h) failed first: killed by SIGABRT; "
        "rank 0 failed too, later; rank 2 ended because of it"
    )


def test_where_there_are_only_victims_the_first_is_named_and_who_left_early():
    verdict = decide(
        *(end(rank, at=rank, **BROKEN) for rank in range(3)),
        end(3, exit_code=0, finished=True),
    )
    assert (verdict.first.rank, verdict.victims) == (0, [1, 2])
    assert "rank 3 had already ended well" in verdict.message


@pytest.mark.parametrize(
    ("fields", "kind", "sentence"),
    [
        ({"exit_code": 3}, "exit", "exited with code 3"),
        (
            {"exit_code": 0},
            "exit",
            "exited with code 0 before its workload was done (os._exit?)",
        ),
        ({"exit_code": 5, "finished": True}, "exit", "exited with code 5"),
        ({"signal": "SIGSEGV", "step": 4}, "signal", "after step 4: killed by SIGSEGV"),
        (
            {"exit_code": 1, "exception": "my.Error", "message": "\n first\nsecond"},
            "exception",
            "my.Error: first",
        ),
        ({"exit_code": 1, "exception": "KeyError", "message": ""}, "exception", ": KeyError"),
        (
            {"signal": "SIGKILL", "out_of_memory": True, "message": "the ranks use 9 GB"},
            "out_of_memory",
            "out of memory: the ranks use 9 GB",
        ),
        ({"exit_code": 1, "exception": "ValueError", "message": "out of memory"}, "exception", ""),
    ],
)
def test_kinds_and_sentences(fields, kind, sentence):
    verdict = decide(end(0, **fields))
    assert verdict.kind == kind
    assert sentence in verdict.message


def test_all_well():
    verdict = decide(end(0, exit_code=0, finished=True, at=4.0), end(1, exit_code=0, finished=True))
    assert (verdict.kind, verdict.exit_code_of_run, verdict.time_s) == ("done", 0, 4.0)


FRAMES = "".join(f'  File "/lib/part_{number}.py", line 7, in call\n' for number in range(20))
TRACEBACK = f"Traceback (most recent call last):\n{FRAMES}"


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        ("Caught OSError in DataLoader worker process 1.\nOriginal ", "process 1: OSError: cut"),
        (
            "\n\n-- Process 1 terminated with the following error:\n",
            "error: OSError: cut",
        ),
        ("", "RuntimeError: OSError: cut"),
    ],
)
def test_of_a_traceback_in_a_message_the_last_words_are_shown(before, shown):
    message = f"{before}{TRACEBACK}OSError: cut\n"
    verdict = decide(end(0, exit_code=1, exception="RuntimeError", message=message))
    assert verdict.message.endswith(shown)
    assert "part_" not in verdict.message
