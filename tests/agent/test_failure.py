"""Whatever ends a rank: the run ends, and the verdict names the one that failed first, and why."""

import json

# Every rank takes part in one collective; then one of them fails in the way of its attempt while
# the others wait for it in the next. Where several fail, each does once the one before it has left
# its report, and ends when the next has, too: none is ended because of another.
SCRIPT = """
import atexit, json, os, sys, time
import torch, torch.distributed as dist
from hpcdist.rank import context as rank

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
me = dist.get_rank()
how, culprits = json.loads(sys.argv[1])[int(os.environ["TORCHELASTIC_RESTART_COUNT"])]
rank.current().progress.step(7)


def wait_for_report(of):
    while not rank.current().run.error_file(of, rank.current().attempt).exists():
        time.sleep(0.001)


def fail():
    if how == "exception":
        raise ValueError("Connection closed by peer, says the data base\\nand more")
    if how == "memory":
        torch.empty(1 << 45)
    import ctypes
    ctypes.string_at(0)


if me in culprits:
    place = culprits.index(me)
    if place > 0:
        wait_for_report(culprits[place - 1])
    if me != culprits[-1]:
        atexit.register(wait_for_report, culprits[place + 1])
    fail()
else:
    dist.all_reduce(torch.ones(1))
dist.barrier()
"""
WAYS = {
    # how: (the ranks that fail, kind, exception, exit code, signal)
    "exception": ([3, 1], "exception", "ValueError", 1, None),
    "memory": ([2], "out_of_memory", "RuntimeError", 1, None),
    "crash": ([0], "signal", None, None, "SIGSEGV"),
}


def test_the_rank_that_failed_first_is_named_with_its_cause(launch, write_script):
    words = json.dumps([(how, culprits) for how, (culprits, *_) in WAYS.items()])
    launched = launch(
        write_script(SCRIPT), words, nodes=2, gpus=2, max_restarts=len(WAYS) - 1, grace_s=0.2
    )
    last = launched.verdict()
    assert (last.state, last.exit_code_of_run) == ("failed", 1)
    verdicts = {}
    for attempt, (how, (culprits, kind, *expected)) in enumerate(WAYS.items()):
        verdicts[how] = verdict = launched.run.read_attempt_verdict(attempt) or last
        first, culprit = verdict.first, culprits[0]
        assert verdict.kind == kind, verdict.message
        assert [first.report.exception, first.exit_code, first.signal] == expected
        assert (first.rank, first.node, first.local_rank) == (culprit, culprit // 2, culprit % 2)
        assert verdict.message.startswith(f"rank {culprit} (node {culprit // 2}, host {first.host}")
        assert verdict.victims == sorted({*range(4)} - {*culprits})
        assert (first.step, "\n" in verdict.message) == (7, False)
        assert [event["event"] for event in launched.events(first.rank, attempt)][-1] == "end"
    assert last.log == "logs/rank-00000.attempt-2.log"
    assert "rank 1 failed too, later" in verdicts["exception"].message
    trace = verdicts["exception"].first.report.traceback.splitlines()
    assert trace[0] == "Traceback (most recent call last):"
    assert "script.py" in trace[1]
    assert trace[-2:] == ["ValueError: Connection closed by peer, says the data base", "and more"]
    assert not [line for line in trace if "hpcdist/" in line]
    crash = verdicts["crash"].first.report.traceback
    assert crash.startswith("Fatal Python error: Segmentation fault")
    assert "in fail" in crash


def test_the_memory_limit_of_the_job_names_the_rank_with_most(launch, write_script):
    script = write_script(
        """
import os, time
kept = bytearray(os.urandom(1 << 20) * (300 if os.environ["RANK"] == "1" else 1))
time.sleep(600)
"""
    )
    verdict = launch(script, gpus=2, mem_gb=0.4).verdict()
    assert (verdict.kind, verdict.first.rank) == ("out_of_memory", 1)
    assert (verdict.first.signal, verdict.victims) == ("SIGKILL", [0])
    assert "resources.mem_gb allows 0.40 GB" in verdict.message


RECORDS = """
from torch.distributed.elastic.multiprocessing.errors import record

class OddError(ValueError):
    pass

@record
def main():
    raise OddError("no: luck")

try:
    main()
except OddError:
    sys.exit(4)
"""
EXEC = """
if "SECOND" not in os.environ:
    os.environ["SECOND"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])
print(os.environ["SECOND"], os.environ["RANK"])
os._exit(7)
"""
ARGPARSE = "import argparse\nargparse.ArgumentParser('PROG').parse_args(['--lr'])"
ENDS = {
    # what the script does: (kind, exit code, exception, words of message and traceback)
    "sys.exit(300)": ("exit", 44, None, "exited with code 44"),
    "sys.exit('why')": ("exit", 1, None, "exited with code 1: why"),
    "import atexit; atexit.register(os._exit, 0); raise ValueError": (
        *("exception", 0, "ValueError", "ValueError"),
    ),
    EXEC: ("exit", 7, None, "exited with code 7"),
    RECORDS: ("exception", 4, "OddError", "first: OddError: no: luck"),
    ARGPARSE: (
        *("exit", 2, None),
        "exited with code 2: the log ends with 'PROG: error: unrecognized arguments: --lr'",
    ),
    "input()": (
        *("exception", 1, "EOFError"),
        "ranks have no keyboard: give the value as an argument, after --",
    ),
    "class Odd(Exception):\n    def __str__(self): raise TypeError\nraise Odd()": (
        *("exception", 1, "Odd", "(its message cannot be shown)"),
    ),
    "raise RuntimeError('No CUDA GPUs are available')": (
        *("exception", 1, "RuntimeError", "this node shows no GPU: let the script choose cpu"),
    ),
    "os.abort()": ("signal", None, None, "the_program_is_above_and_hpcdist_below"),
}


def test_a_script_ends_with_pythons_exit_code_and_the_verdict_has_the_reason(launch, write_script):
    text = "import json, os, sys\n"
    text += "exec(json.loads(sys.argv[1])[int(os.environ['TORCHELASTIC_RESTART_COUNT'])])"
    script, most = write_script(text), len(ENDS) - 1
    launched = launch(script, json.dumps([*ENDS]), max_restarts=most, grace_s=0.2)
    last = launched.verdict()
    for attempt, (source, (kind, code, exception, words)) in enumerate(ENDS.items()):
        verdict = launched.run.read_attempt_verdict(attempt) or last
        first = verdict.first
        found = (verdict.kind, first.exit_code, first.report.exception)
        assert found == (kind, code, exception), (source, verdict.message)
        assert words in f"{verdict.message}{first.report.traceback}", source
        assert [e["event"] for e in launched.events(0, attempt)].count("end") == 1


PROGRAM = """#!/bin/sh
echo said
case $TORCHELASTIC_RESTART_COUNT in 0) exit 3;; 1) kill -SEGV $$;; esac
"""
ENDS_OF_PROGRAM = [
    # kind, exit code, signal, status
    ("exit", 3, None, "failed"),
    ("signal", None, "SIGSEGV", "killed"),
    ("done", 0, None, "done"),
]


def test_the_exit_code_or_the_signal_of_a_program_is_the_ranks(launch, write_script):
    program = write_script(PROGRAM, "program")
    program.chmod(0o755)
    launched = launch(program, no_python=True, max_restarts=2)
    last = launched.verdict()
    assert launched.run.log_file(0).stat().st_mode & 0o777 == 0o600
    for attempt, (kind, *how, status) in enumerate(ENDS_OF_PROGRAM):
        verdict = launched.run.read_attempt_verdict(attempt) or last
        told = verdict.first or verdict
        assert [verdict.kind, told.exit_code, told.signal] == [kind, *how]
        assert launched.log(0, attempt) == "said\n"
        start, *_, end = launched.events(0, attempt)
        assert (start["event"], end["event"], end["status"]) == ("start", "end", status)
        assert [end.get("exit_code"), end.get("signal"), end["by"]] == [*how, "agent"]
