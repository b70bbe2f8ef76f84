"""A rank ends as the interpreter ends: with nothing left unwritten, and its own exit code."""

import pytest

AT_THE_END = """
import os, sys, time

unflushed = open(sys.argv[2], "w")
unflushed.write("whole")

class Last:
    def __del__(self, how=sys.argv[1], sleep=time.sleep, kill=os.kill, pid=os.getpid()):
        sleep(1000) if how == "hung" else kill(pid, 11)

last = Last()
"""


@pytest.mark.parametrize("how", ["crashed (SIGSEGV)", "hung"])
def test_what_goes_wrong_at_the_end_is_hpcdists_and_loses_nothing(
    launch, write_script, tmp_path, how
):
    change = "harness:wait_briefly_at_the_end"
    script = write_script(AT_THE_END)
    launched = launch(script, how, tmp_path / "file", gpus=2, change=change)
    verdict = launched.verdict()
    assert (verdict.kind, verdict.exit_code_of_run) == ("done", 0)
    remark = f"hpcdist's end of ranks 0 and 1 {how}, after the work was done"
    assert (verdict.remark, verdict.message) == (remark, f"every rank ended well; {remark}")
    assert (tmp_path / "file").read_text() == "whole"
    assert launched.events(0)[-1]["status"] == "done"


FORK = """
import os, sys
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
