"""A rank ends as the interpreter ends: with nothing left unwritten, and its own exit code."""

import pytest


def test_a_rank_that_fails_after_another_ends_in_order_too(launch, write_script, tmp_path):
    """The first one's end does not cut off the second one's, however many destructors it has."""
    script = write_script(
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "folder, rank = Path(sys.argv[1]), os.environ['RANK']\n"
        "class Slow:\n"
        "    def __del__(self, sleep=time.sleep, file=open(folder / rank, 'w')):\n"
        "        sleep(1.5 * int(rank))\n"
        "        file.write('whole')\n"
        "slow = Slow()\n"
        "(folder / f'here-{rank}').touch()\n"
        "while len(list(folder.glob('here-*'))) < 2: time.sleep(0.01)\n"
        "raise OSError('gone')"
    )
    launched = launch(script, tmp_path, gpus=2)
    assert launched.verdict().first.exit_code == 1
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["whole", "whole"]
    assert launched.events(1)[-1]["status"] == "failed"


def test_a_failed_rank_whose_threads_hang_has_written_its_files(launch, write_script, tmp_path):
    script = write_script(
        "import sys, threading, time\n"
        "file = open(sys.argv[1], 'w')\n"
        "file.write('whole')\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "raise OSError('gone')"
    )
    verdict = launch(script, tmp_path / "file").verdict()
    assert (verdict.first.report.exception, verdict.first.exit_code) == ("OSError", 1)
    assert (tmp_path / "file").read_text() == "whole"


AT_THE_END = """
import os, sys, time

unflushed = open(sys.argv[2], "w")
unflushed.write("whole")

class Last:
    def __del__(self, how=sys.argv[1], sleep=time.sleep, kill=os.kill, pid=os.getpid()):
        sleep(1000) if how == "hang" else kill(pid, 11)

last = Last()
"""


def test_a_crash_at_the_end_is_hpcdists_and_loses_nothing(launch, write_script, tmp_path):
    launched = launch(write_script(AT_THE_END), "crash", tmp_path / "file", gpus=2)
    verdict = launched.verdict()
    assert (verdict.kind, verdict.exit_code_of_run) == ("done", 0)
    assert verdict.remark == (
        "hpcdist's end of ranks 0 and 1 crashed (SIGSEGV), after the work was done"
    )
    assert (tmp_path / "file").read_text() == "whole"
    assert launched.events(0)[-1]["status"] == "done"


def test_a_rank_that_hangs_at_its_end_is_ended_and_told(launch, write_script, tmp_path):
    change = "harness:wait_briefly_at_the_end"
    launched = launch(write_script(AT_THE_END), "hang", tmp_path / "file", change=change)
    verdict = launched.verdict()
    assert (verdict.kind, verdict.exit_code_of_run) == ("done", 0)
    assert verdict.message == (
        "every rank ended well; hpcdist's end of rank 0 hung, after the work was done"
    )


LEAVE = """
import os, sys
if "raised" in sys.argv:
    import atexit
    atexit.register(os._exit, 0)
    raise ValueError("before it left")
if "other" in sys.argv and "SECOND" not in os.environ:
    os.environ["SECOND"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])
print(os.environ.get("SECOND"), os.environ["RANK"])
os._exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("args", "kind", "status"),
    [
        (["0", "other"], "done", "done"),
        (["7", "other"], "exit", "failed"),
        (["0", "raised"], "exception", "failed"),
    ],
    ids=["exec", "exec 7", "raised before"],
)
def test_a_rank_that_leaves_by_itself_is_judged_by_its_exit_code(
    launch, write_script, args, kind, status
):
    launched = launch(write_script(LEAVE), *args, gpus=2)
    verdict = launched.verdict()
    assert verdict.kind == kind, launched.everything_said()
    first = verdict.first.rank if verdict.first else 0
    events = launched.events(first)  # the other may be killed before it leaves
    assert [event["event"] for event in events] == ["start", "end"]
    assert events[-1]["status"] == status


FORK = """
import atexit, os, sys
from hpcdist import record
from hpcdist.rank import context as rank

kept = open(sys.argv[1] + os.environ["RANK"], "w")
how = ["raise", "exit", "return"][int(os.environ["RANK"])]
record.step(samples=1)
pid = os.fork()
if pid == 0:
    kept.write("by the child")
    record.step(samples=100)
    assert rank.current() is None
    if how == "raise":
        raise ValueError("in the child")
    if how == "exit":
        sys.exit(5)
else:
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_what_a_forked_child_of_a_rank_does_is_not_the_ranks(launch, write_script, tmp_path):
    launched = launch(write_script(FORK), tmp_path / "child", gpus=3)
    assert launched.verdict().kind == "done", launched.everything_said()
    for rank, (how, code) in enumerate([("raise", 1), ("exit", 5), ("return", 0)]):
        assert launched.log(rank).endswith(f"child {code}\n")
        assert ("ValueError: in the child" in launched.log(rank)) is (how == "raise")
        assert (tmp_path / f"child{rank}").read_text() == "by the child"
        assert not launched.run.error_file(rank).exists()
        start, *_, steps, end = launched.events(rank)
        assert (start["event"], steps["samples"], end["status"]) == ("start", 1, "done")


def test_a_program_may_call_itself_as_deeply_as_under_python(launch, write_script):
    script = write_script(
        "import sys\n"
        "def count(depth=2):\n"  # the module's frame is the first
        "    try:\n        return count(depth + 1)\n"
        "    except RecursionError:\n        return depth\n"
        "print(count(), sys.stdin.name, sys.stdout.name, sys.stderr.name)\n"
        "sys.__stdout__.write('as ever\\n')"
    )
    launched = launch(script)
    assert launched.verdict().kind == "done"
    depth, _, names = launched.log(0).partition(" ")
    assert int(depth) >= 1000
    assert names == "<stdin> <stdout> <stderr>\nas ever\n"
