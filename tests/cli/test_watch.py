"""`hpcdist watch`, on a terminal and off it."""

import signal

import click
import pytest
from launched_runs import LaunchedRun
from terminals import Terminal

from hpcdist.runs.run import Run

SEEN = """
import time
from pathlib import Path
from hpcdist import record

record.start()
while not Path("seen").exists():
    time.sleep(0.02)
    record.step(samples=8)
"""
"""Goes on until it was seen to."""
ENDLESS = "import time\nprint('on', flush=True)\nwhile True:\n    time.sleep(0.05)\n"
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
SHOW_CURSOR = "\x1b[?25h"


def assert_clean(terminal):
    """The screen of its own is left, the cursor is there, and nothing is drawn after that."""
    assert terminal.shown.count(ENTER) == terminal.shown.count(LEAVE) == 1
    _, after = terminal.shown.rsplit(LEAVE, 1)
    assert SHOW_CURSOR in terminal.shown[terminal.shown.rindex("\x1b[?25l") :]
    assert "Traceback" not in terminal.shown
    return " ".join(click.unstyle(after.replace(SHOW_CURSOR, "")).split())


@pytest.fixture(scope="module")
def endless(hpcdist_in, tmp_path_factory):
    """A run that no test ends; it lives longer than a test, whose processes are told by a mark."""
    user = hpcdist_in(tmp_path_factory.mktemp("endless"))
    user.write("endless.py", ENDLESS)
    user.environment["HPCDIST_TEST_MARK"] = "none"
    submitted = user("submit", "endless.py", "--scheduler", "local")
    assert submitted.returncode == 0, submitted.stderr
    del user.environment["HPCDIST_TEST_MARK"]
    launched = LaunchedRun(Run(user.folder / "runs" / submitted.stdout.strip()))
    launched.wait(lambda: "on" in launched.log(0))
    yield user
    user("cancel", "last")
    launched.verdict()


@pytest.mark.parametrize(("code", "said"), [(0, "1 done"), (7, "exited with code 7")])
def test_a_run_is_watched_to_its_end_and_gives_its_exit_code(hpcdist, code, said):
    hpcdist.write("seen.py", f"{SEEN}raise SystemExit({code})\n")
    assert hpcdist("submit", "seen.py", "--gpus", "2", "--scheduler", "local").returncode == 0
    terminal = Terminal(hpcdist, "watch", "last")
    terminal.wait_for("step ")
    hpcdist.write("seen", "")
    assert terminal.finish() == (1 if code else 0), terminal.shown
    after = assert_clean(terminal)
    assert said in after
    assert "step " in after


@pytest.mark.parametrize("how", ["ctrl-c", signal.SIGTERM, signal.SIGHUP], ids=str)
def test_an_interrupted_view_leaves_the_terminal_clean_and_the_run_alone(endless, how):
    terminal = Terminal(endless, "watch", "last")
    terminal.wait_for("1 running")
    if how == "ctrl-c":
        terminal.press_ctrl_c()
    else:
        terminal.process.send_signal(how)
    assert terminal.finish() == 130, terminal.shown
    assert assert_clean(terminal) == ""
    assert '"running"' in endless("status", "last", "--json").stdout


def test_a_pipe_gets_one_plain_frame(endless):
    done = endless("watch")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 running")
    assert "\x1b" not in done.stdout
    terminal = Terminal(endless, "watch", "--once")
    assert terminal.finish() == 0
    assert "1 running" in terminal.shown
    assert ENTER not in terminal.shown
