"""A run followed on a terminal: live progress, Ctrl-C, and what is left afterwards."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from terminals import LIMIT_S, Terminal
from waiting import wait_for

from hpcdist.runs.run import Run

TICKS = """
import os, time
from pathlib import Path
Path(os.environ["HPCDIST_RUN_DIR"], "checkpoints", "step-00000004.ckpt").touch()
while True:
    print("ticking", flush=True)
    time.sleep(0.05)
"""

RECORDED = """
import time
from pathlib import Path
from hpcdist import record

record.start()
while not Path("released").exists():
    time.sleep(0.05)
    record.step(samples=8)
"""

BARS = """
import os, time
from pathlib import Path
from tqdm import tqdm

for epoch in tqdm(range(2), desc="outer", mininterval=0):
    for step in tqdm(range(10), desc="inner", leave=False, mininterval=0):
        while step == 5 and not Path("released").exists():
            time.sleep(0.02)
    tqdm.write(f"epoch {epoch}")
print("\\rlast words", end="", flush=True)
os.kill(os.getpid(), 9)
"""


def assert_gone_and_readable(hpcdist, processes_of):
    wait_for(lambda: not processes_of(hpcdist.folder))
    (run,) = hpcdist.runs
    assert Run(run).read_verdict().state == "cancelled"
    (listed,) = json.loads(hpcdist("runs", "--json").stdout)
    assert listed["state"] == "cancelled"
    assert not list(Path("/dev/shm").glob(f"*{run.name}*"))


@pytest.mark.parametrize(
    ("until", "size", "numbers"),
    [
        ("[rank 3]", (2, 2), (signal.SIGINT, signal.SIGINT)),  # impatience must break nothing
        ("[rank 0]", (1, 1), (signal.SIGHUP,)),
        ("run ticks-", (1, 1), (signal.SIGINT,)),
    ],
    ids=["ctrl-c", "sighup", "ctrl-c at the start"],
)
def test_a_signal_ends_every_process_of_the_run(hpcdist, processes_of, until, size, numbers):
    hpcdist.write("ticks.py", TICKS)
    nodes, gpus = size
    words = ("submit", "ticks.py", "--nodes", nodes, "--gpus", gpus, "--local")
    terminal = Terminal(hpcdist, *words, columns=200, rows=50)
    terminal.wait_for(until)
    for number in numbers:
        if number == signal.SIGINT:
            terminal.press_ctrl_c()
        else:
            terminal.process.send_signal(number)
    assert terminal.finish() == 130, terminal.shown
    assert_gone_and_readable(hpcdist, processes_of)
    name, last = hpcdist.runs[0].name, terminal.shown.splitlines()[-1]
    assert last.startswith(f"run {name} cancelled")
    if until != "run ticks-":
        assert last.endswith(f"continue with: hpcdist resume {name}")
    assert "Traceback" not in terminal.shown


def test_a_reader_that_goes_away_ends_the_run(hpcdist, processes_of):
    hpcdist.write("ticks.py", TICKS)
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
    assert "continues; end it with: hpcdist cancel" in terminal.shown
    assert json.loads(hpcdist("status", "--json").stdout)[0]["state"] == "running"
    assert hpcdist("cancel", "last").returncode == 0
    assert_gone_and_readable(hpcdist, processes_of)


def test_progress_is_drawn_on_a_terminal(hpcdist):
    hpcdist.write("recorded.py", RECORDED)
    recorded = ("submit", "recorded.py", "--local", "--set", "record.window_s=0.05")
    terminal = Terminal(hpcdist, *recorded)
    # The pace stands there once the run is asked about again, and seen to be pending no more.
    terminal.wait_for("samples/s")
    hpcdist.write("released", "")
    assert terminal.finish() == 0
    assert ": done in " in terminal.shown.splitlines()[-2]
    assert "\x1b[?25h" in terminal.shown  # the cursor is back


def test_bars_are_drawn_while_they_go_on_and_are_a_line_each_in_the_end(hpcdist):
    hpcdist.write("bars.py", BARS)
    terminal = Terminal(hpcdist, "submit", "bars.py", "--local", rows=40, columns=120)
    terminal.wait_for("outer:   0%|")
    hpcdist.write("released", "")
    assert terminal.finish() == 1
    plain = hpcdist("logs", "last")  # finished lines, and what was open when the rank was killed
    first, second, bar, last = plain.stdout.splitlines()
    assert (first, second, last) == ("epoch 0", "epoch 1", "last words")
    assert bar.startswith("outer: 100%|")
    assert not {"\x1b", "\r"} & {*plain.stdout, *plain.stderr}
    assert Run(hpcdist.runs[-1]).log_file(0).read_bytes().count(b"\r") > 20  # as it was written


def test_no_color_is_honoured(hpcdist):
    for value, begin in (("1", "error: there is no job"), ("", "\x1b[31m")):
        hpcdist.environment["NO_COLOR"] = value
        terminal = Terminal(hpcdist, "submit", "nothing")
        assert terminal.finish() == 2
        assert terminal.shown.startswith(begin)
