"""A rank ends as the interpreter ends: with nothing left unwritten, and its own exit code."""

import gzip

import pytest

OPEN_FILES = """
import csv, ctypes, gzip, logging, os, signal, sys, threading, time, types
from pathlib import Path

folder = Path(sys.argv[1], os.environ["RANK"])
folder.mkdir(parents=True)


class Logger:
    def __init__(self):
        self.terminal, self.log = sys.stdout, open(folder / "tee.txt", "w")

    def write(self, text):
        self.terminal.write(text)
        self.log.write(text)

    def flush(self):
        pass


class Writer:
    def __init__(self, name):
        self.name, self.rows = name, []
        self.itself = self if "handler" not in sys.argv else None  # a cycle, as many have

    def __del__(self):
        Path(folder, self.name).write_text(",".join(self.rows))


def in_thread():
    file = open(folder / "thread.txt", "w")
    file.write("by a daemon thread")
    started.set()
    time.sleep(1000)


sys.stdout = Logger()
rows = open(folder / "rows.csv", "w")
csv.writer(rows).writerow(["epoch", "loss"])
zipped = gzip.open(folder / "zipped.gz", "wt")
zipped.write("whole\\n")
writer = Writer("footer.txt")
writer.rows += ["head", "foot"]
logging.of_the_program = open(folder / "kept.txt", "w")
logging.of_the_program.write("by a module that was there before")
helper = types.ModuleType("helper")
sys.modules["helper"] = helper
helper.file = open(folder / "module.txt", "w")
helper.file.write("by a module of the program")
helper.function = exec("def function(): return file", helper.__dict__)
if "thread" in sys.argv:
    started = threading.Event()
    threading.Thread(target=in_thread, daemon=True).start()
    started.wait()
if "handler" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: in_thread())  # it keeps the names of this module
print("told")
ctypes.CDLL(None).puts(b"held back by C")
if "raise" in sys.argv:
    Path(folder, "written").touch()
    while len(list(folder.parent.glob("*/written"))) < 2:  # the first to fail ends the other
        time.sleep(0.01)
    raise ValueError("after all was written")
if "exit" in sys.argv:
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("how", "code"),
    [((), 0), (("handler",), 0), (("raise",), 1), (("exit",), 3)],
    ids=["well", "handler", "raise", "exit"],
)
def test_what_a_rank_has_open_at_its_end_is_written(launch, write_script, tmp_path, how, code):
    launched = launch(write_script(OPEN_FILES), tmp_path / "out", *how, gpus=2)
    verdict = launched.verdict()
    assert (verdict.first or verdict).exit_code == code, launched.everything_said()
    for rank in range(2):
        folder = tmp_path / "out" / str(rank)
        written = {file.name: file.read_bytes() for file in folder.iterdir()}
        written.pop("written", None)
        assert gzip.decompress(written.pop("zipped.gz")) == b"whole\n"
        assert written == {
            "tee.txt": b"told\n",
            "rows.csv": b"epoch,loss\r\n",
            "footer.txt": b"head,foot",
            "kept.txt": b"by a module that was there before",
            "module.txt": b"by a module of the program",
        }
        assert "held back by C\n" in launched.log(rank)


def test_files_are_closed_although_a_daemon_thread_goes_on(launch, write_script, tmp_path):
    launched = launch(write_script(OPEN_FILES), tmp_path / "out", "thread")
    assert launched.verdict().kind == "done"
    folder = tmp_path / "out" / "0"
    assert (folder / "thread.txt").read_text() == "by a daemon thread"
    assert (folder / "rows.csv").read_bytes() == b"epoch,loss\r\n"
    assert gzip.decompress((folder / "zipped.gz").read_bytes()) == b"whole\n"
    assert "Traceback" not in launched.log(0)


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
    change = "forked_agents:wait_briefly_at_the_end"
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
        (["0"], "done", "done"),
        (["0", "other"], "done", "done"),
        (["7"], "exit", "failed"),
        (["7", "other"], "exit", "failed"),
        (["0", "raised"], "exception", "failed"),
    ],
    ids=["os._exit 0", "exec", "os._exit 7", "exec 7", "raised before"],
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


def test_a_rank_without_stdout_ends_well(launch, write_script):
    script = write_script(
        "import os, sys\n"
        "if os.environ['RANK'] != '0': sys.stdout = sys.stderr = None\n"
        "print('said')"
    )
    launched = launch(script, gpus=2)
    assert launched.verdict().kind == "done"
    assert launched.logs() == ["said\n", ""]


FORK = """
import atexit, os, sys
from hpcdist import record
from hpcdist.rank import context as rank

kept = open(sys.argv[2] + os.environ["RANK"], "w")
record.step(samples=1)
pid = os.fork()
if pid == 0:
    kept.write("by the child")
    record.step(samples=100)
    assert rank.current() is None
    if sys.argv[1] == "raise":
        raise ValueError("in the child")
    if sys.argv[1] == "exit":
        sys.exit(5)
else:
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize(("how", "code"), [("raise", 1), ("exit", 5), ("return", 0)])
def test_what_a_forked_child_of_a_rank_does_is_not_the_ranks(
    launch, write_script, tmp_path, how, code
):
    launched = launch(write_script(FORK), how, tmp_path / "child", gpus=2)
    assert launched.verdict().kind == "done", launched.everything_said()
    for rank in range(2):
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
