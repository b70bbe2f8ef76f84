"""A run followed on a terminal: live progress, Ctrl-C, and what is left afterwards."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from held_model import HELD_MODEL
from terminals import LIMIT_S, Terminal

from hpcdist.run import Run

GONE_S = 60.0

TICKS = """
import time
print("ticking", flush=True)
while True:
    time.sleep(0.05)
"""


def assert_gone_and_readable(hpcdist, processes_of):
    deadline_s = time.monotonic() + GONE_S
    while (left := processes_of(hpcdist.folder)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not left
    (run,) = hpcdist.runs
    assert Run(run).read_verdict().state == "cancelled"
    (listed,) = json.loads(hpcdist("runs", "--json").stdout)
    assert listed["state"] == "cancelled"
    assert not list(Path("/dev/shm").glob(f"*{run.name}*"))


def test_ctrl_c_ends_every_process_of_the_run(hpcdist, processes_of):
    hpcdist.write("ticks.py", TICKS)
    terminal = Terminal(hpcdist, "submit", "ticks.py", "--nodes", "2", "--gpus", "2", "--local")
    terminal.wait_for("[rank 3]")
    terminal.press_ctrl_c()
    terminal.press_ctrl_c()  # impatience must not break the cleaning up
    assert terminal.finish() == 130, terminal.shown
    assert_gone_and_readable(hpcdist, processes_of)
    assert "cancelled: interrupted" in terminal.shown
    assert "Traceback" not in terminal.shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_every_process_of_the_run(hpcdist, processes_of, number):
    hpcdist.write("ticks.py", TICKS)
    terminal = Terminal(hpcdist, "submit", "ticks.py", "--gpus", "2", "--local")
    terminal.wait_for("[rank 1]")
    terminal.process.send_signal(number)
    assert terminal.finish() == 130, terminal.shown
    assert_gone_and_readable(hpcdist, processes_of)


def test_ctrl_c_while_the_run_starts_leaves_nothing(hpcdist, processes_of):
    hpcdist.write("ticks.py", TICKS)
    terminal = Terminal(hpcdist, "submit", "ticks.py", "--gpus", "2", "--local")
    terminal.wait_for("run ticks-")
    terminal.press_ctrl_c()
    assert terminal.finish() == 130, terminal.shown
    assert_gone_and_readable(hpcdist, processes_of)


def test_a_reader_that_goes_away_ends_the_run(hpcdist, processes_of):
    hpcdist.write("ticks.py", TICKS.replace("0.05)", "0.05)\n    print('tick', flush=True)"))
    command = hpcdist.start("submit", "ticks.py", "--local", stdout=subprocess.PIPE, stderr=-3)
    assert command.stdout.readline() == b"[rank 0] ticking\n"
    command.stdout.close()
    assert command.wait(LIMIT_S) == 1
    assert_gone_and_readable(hpcdist, processes_of)


def test_ctrl_c_while_waiting_leaves_a_background_run_alone(hpcdist, processes_of):
    hpcdist.write("ticks.py", TICKS)
    terminal = Terminal(hpcdist, "submit", "ticks.py", "--scheduler", "local", "--wait")
    terminal.wait_for("[rank 0]")
    terminal.press_ctrl_c()
    assert terminal.finish() == 130, terminal.shown
    assert "goes on; end it with: hpcdist cancel" in terminal.shown
    assert json.loads(hpcdist("status", "--json").stdout)[0]["state"] == "running"
    assert hpcdist("cancel", "last").returncode == 0
    assert_gone_and_readable(hpcdist, processes_of)


@pytest.mark.timeout(240)
def test_progress_is_drawn_on_a_terminal_and_nowhere_else(hpcdist):
    hpcdist.write("held.py", HELD_MODEL)
    settings = ("model.name=held:HeldMLP", "train.max_steps=300", "train.num_threads=1")
    options = ["--local", *(part for one in settings for part in ("--set", one))]
    terminal = Terminal(hpcdist, "submit", "ddp", *options)
    terminal.wait_for("samples/s, loss")
    hpcdist.write("released", "")
    assert terminal.finish() == 0
    assert "/300 " in terminal.shown
    assert ": done in " in terminal.shown.splitlines()[-1]
    assert "\x1b[?25h" in terminal.shown  # the cursor is back

    plain = hpcdist("submit", "ddp", *options, "--set", "train.max_steps=90")
    assert plain.returncode == 0
    assert "\x1b" not in plain.stdout + plain.stderr
    assert plain.stdout.startswith("[rank 0] epoch 1/")


def test_no_color_is_honoured(hpcdist):
    hpcdist.environment["NO_COLOR"] = "1"
    terminal = Terminal(hpcdist, "submit", "nothing")
    assert terminal.finish() == 2
    assert terminal.shown.startswith("error: there is no job")
    hpcdist.environment.pop("NO_COLOR")
    terminal = Terminal(hpcdist, "submit", "nothing")
    assert terminal.finish() == 2
    assert "\x1b[31m" in terminal.shown
