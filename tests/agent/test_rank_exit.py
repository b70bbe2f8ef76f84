"""A rank ends as the interpreter ends: with nothing left unwritten, and its own exit code."""

AT_THE_END = """
import os, sys

unflushed = open(sys.argv[1], "w")
unflushed.write("whole")

class Last:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, 11)

last = Last()
"""


def test_what_goes_wrong_at_the_end_is_hpcdists_and_loses_nothing(launch, write_script, tmp_path):
    launched = launch(write_script(AT_THE_END), tmp_path / "file", gpus=2)
    verdict = launched.verdict()
    assert (verdict.kind, verdict.exit_code_of_run) == ("done", 0)
    remark = "hpcdist's end of ranks 0 and 1 crashed (SIGSEGV), after the work was done"
    assert (verdict.remark, verdict.message) == (remark, f"every rank ended well; {remark}")
    assert (tmp_path / "file").read_text() == "whole"
    assert launched.events(0)[-1]["status"] == "done"
