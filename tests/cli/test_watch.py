"""`hpcdist watch`, on a terminal and off it."""

import signal

import click
from terminals import Terminal

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


def test_a_run_is_watched_to_its_end_and_gives_its_exit_code(hpcdist):
    hpcdist.write("seen.py", f"{SEEN}raise SystemExit(7)\n")
    assert hpcdist("submit", "seen.py", "--gpus", "2", "--scheduler", "local").returncode == 0
    terminal = Terminal(hpcdist, "watch", "last")
    terminal.wait_for("step ")
    hpcdist.write("seen", "")
    assert terminal.finish() == 1, terminal.shown
    after = assert_clean(terminal)
    assert "exited with code 7" in after
    assert "step " in after


def test_an_interrupted_view_leaves_the_terminal_clean_and_the_run_alone(hpcdist):
    hpcdist.write("endless.py", ENDLESS)
    assert hpcdist("submit", "endless.py", "--scheduler", "local").returncode == 0
    for how in ("ctrl-c", signal.SIGTERM):
        terminal = Terminal(hpcdist, "watch", "last")
        terminal.wait_for("1 running")
        if how == "ctrl-c":
            terminal.press_ctrl_c()
        else:
            terminal.process.send_signal(how)
        assert terminal.finish() == 130, terminal.shown
        assert assert_clean(terminal) == ""
    plain = hpcdist("watch")  # a pipe gets one frame
    assert plain.stdout.startswith("1 running"), plain.stderr
    assert "\x1b" not in plain.stdout
    assert hpcdist("cancel", "last").returncode == 0
