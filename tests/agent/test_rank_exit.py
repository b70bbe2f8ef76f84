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
