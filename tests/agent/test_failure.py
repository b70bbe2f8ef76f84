"""Whatever ends a rank: the run ends, and the verdict names the one that failed first, and why."""

import json

import pytest

# Every rank takes part in one collective; then one of them fails in the way that its first argument
# names while the others wait for it in the next. Where several fail, each does once the one before
# it has left its report, and ends when the next has, too: none is ended because of another.
SCRIPT = """
import atexit, json, os, resource, signal, sys, time
import torch, torch.distributed as dist
from hpcdist.rank import context as rank

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
me, how, culprits = dist.get_rank(), sys.argv[1], json.loads(sys.argv[2])
rank.current().progress.step(7)


def say_when():
    with open(sys.argv[3], "a") as file:
        print(time.time(), file=file)


def wait_for_report(of):
    while not rank.current().run.error_file(of).exists():
        time.sleep(0.001)


def fail():
    if how == "exception":
        raise ValueError("Connection closed by peer, says the data base\\nand more")
    if how == "memory":
        limit = int(open("/proc/self/statm").read().split()[0]) * 4096 + 200_000_000
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        kept = []
        while True:
            kept.append(list(range(1_000_000)))
    if how == "tensor memory":
        torch.empty(1 << 45)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "sleep":
        time.sleep(1000)
    if how == "crash":
        import ctypes
        ctypes.string_at(0)
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
    if how.startswith("exit"):
        sys.exit(int(how.split()[1]))
    if how.startswith("_exit"):
        os._exit(int(how.split()[1]))


if me in culprits:
    place = culprits.index(me)
    if place > 0:
        wait_for_report(culprits[place - 1])
    if me != culprits[-1]:
        atexit.register(wait_for_report, culprits[place + 1])
    say_when()
    fail()
else:
    dist.all_reduce(torch.ones(1))
dist.barrier()
"""
SOON_S = 30  # tenths of a second, where the machine is not busy; gloo would wait for 30 minutes


@pytest.fixture
def fail(launch, write_script, tmp_path):
    """Launch the script with one or more ranks that fail; returns (run, verdict, time)."""

    def start(how, culprits, nodes=1, gpus=4, **options):
        times = tmp_path / "times"
        launched = launch(
            write_script(SCRIPT),
            *(how, json.dumps(culprits), times),
            nodes=nodes,
            gpus=gpus,
            **options,
        )
        verdict = launched.verdict()
        assert times.exists(), launched.everything_said()
        failed_s = float(times.read_text().split()[0])
        print(f"verdict {launched.seconds_to_verdict(failed_s):.2f} s after the failure")
        return launched, verdict, failed_s

    return start


def check(launched, verdict, failed_s, *, culprit, gpus, world_size, also_failed=()):
    """What holds for every failure."""
    assert verdict.state == "failed", launched.everything_said()
    assert verdict.exit_code_of_run == 1
    assert (verdict.first.rank, verdict.first.node) == (culprit, culprit // gpus), verdict.message
    assert verdict.first.local_rank == culprit % gpus
    assert verdict.first.host
    assert verdict.message.startswith(f"rank {culprit} (node {culprit // gpus}, host ")
    assert verdict.victims == sorted(set(range(world_size)) - {culprit, *also_failed})
    assert verdict.log == f"logs/rank-{culprit:05d}.log"
    assert verdict.first.step == 7
    assert launched.seconds_to_verdict(failed_s) < SOON_S
    for rank in range(world_size):
        events = launched.events(rank)
        assert [events[0]["event"], events[-1]["event"]] == ["start", "end"]
        assert sum(event["event"] == "end" for event in events) == 1


@pytest.mark.parametrize(
    ("how", "culprit", "kind", "expected"),
    [
        ("exception", 2, "exception", {"exception": "ValueError", "exit_code": 1}),
        ("SIGKILL", 2, "signal", {"signal": "SIGKILL", "exit_code": None}),
        ("crash", 0, "signal", {"signal": "SIGSEGV"}),
        ("_exit 7", 2, "exit", {"exit_code": 7, "exception": None}),
        ("memory", 2, "out_of_memory", {"exception": "MemoryError"}),
        ("tensor memory", 0, "out_of_memory", {"exception": "RuntimeError"}),
    ],
)
def test_the_rank_that_failed_first_is_named_with_its_cause(fail, how, culprit, kind, expected):
    launched, verdict, failed_s = fail(how, [culprit], gpus=3)
    check(launched, verdict, failed_s, culprit=culprit, gpus=3, world_size=3)
    assert verdict.kind == kind
    first = verdict.first
    said = {"signal": first.signal, "exit_code": first.exit_code}
    said["exception"] = first.report.exception
    assert {name: said[name] for name in expected} == expected
    tell = {"exception": assert_users_traceback, "crash": assert_crash_is_traced}.get(how)
    if tell is not None:
        tell(verdict)


def assert_users_traceback(verdict):
    assert (
        "Connection closed by peer, says the data base\nand more" in verdict.first.report.traceback
    )
    assert "\n" not in verdict.message
    lines = verdict.first.report.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "script.py" in lines[1]
    assert lines[-2:] == ["ValueError: Connection closed by peer, says the data base", "and more"]
    assert "hpcdist/" not in verdict.first.report.traceback


def assert_crash_is_traced(verdict):
    assert verdict.first.report.traceback.startswith("Fatal Python error: Segmentation fault")
    assert "in fail" in verdict.first.report.traceback


def test_of_two_that_fail_the_first_is_named_and_the_other_is_no_victim(fail):
    launched, verdict, failed_s = fail("exception", [6, 1], nodes=2)
    check(launched, verdict, failed_s, culprit=6, gpus=4, world_size=8, also_failed=[1])
    assert "rank 1 failed too, later" in verdict.message


def test_the_memory_limit_of_the_job_names_the_rank_with_most(launch, write_script):
    script = write_script(
        """
import os, time
kept = bytearray(os.urandom(1 << 20) * (300 if os.environ["RANK"] == "1" else 1))
time.sleep(600)
"""
    )
    launched = launch(script, gpus=2, mem_gb=0.4)
    verdict = launched.verdict()
    assert (verdict.kind, verdict.first.rank) == ("out_of_memory", 1)
    assert verdict.first.signal == "SIGKILL"
    assert "resources.mem_gb allows 0.40 GB" in verdict.message
    assert verdict.victims == [0]


@pytest.mark.parametrize(
    ("raised", "exception", "message"),
    [
        ("ValueError('half a pair \\udcff')", "ValueError", "half a pair \\udcff"),
        ("Odd()", "Odd", "(its message cannot be shown)"),
        ("RuntimeError('x' * 1_000_000)", "RuntimeError", "letters left out"),
    ],
    ids=["surrogate", "unprintable", "endless"],
)
def test_odd_exceptions_are_told_all_the_same(launch, write_script, raised, exception, message):
    script = write_script(
        f"class Odd(Exception):\n    def __str__(self): raise TypeError\nraise {raised}"
    )
    launched = launch(script)
    verdict = launched.verdict()
    assert verdict.first.report.exception == exception
    assert message in verdict.message + verdict.first.report.traceback
    assert launched.events(0)[-1]["by"] == "rank"
