"""A run followed on a terminal: live progress, Ctrl-C, and what is left afterwards."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from terminals import LIMIT_S, Terminal

from hpcdist.runs.run import Run

GONE_S = 60.0

TICKS = """
import time
print("ticking", flush=True)
while True:
    time.sleep(0.05)
"""

RECORDED = """
import time
from hpcdist import record

record.start()
for step in range(30):
    time.sleep(0.05)
    record.step(samples=8)
print("over")
"""

BARS = """
import os, time
from pathlib import Path
from tqdm import tqdm

rank = os.environ["RANK"]

def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.02)

for epoch in tqdm(range(2), desc=f"outer of {rank}", mininterval=0):
    for step in tqdm(range(10), desc=f"inner of {rank}", leave=False, mininterval=0):
        if step == 5:
            wait_for("released")
    tqdm.write(f"epoch {epoch} of {rank}")
print(f"\\rlast words of {rank}", end="", flush=True)
wait_for("over")
if rank == "1":
    os.kill(os.getpid(), 9)
time.sleep(600)
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


@pytest.mark.parametrize(
    ("until", "size", "numbers"),
    [
        ("[rank 3]", (2, 2), (signal.SIGINT, signal.SIGINT)),  # impatience must break nothing
        ("[rank 0]", (1, 1), (signal.SIGTERM,)),
        ("[rank 1]", (1, 2), (signal.SIGHUP,)),
        ("run ticks-", (1, 2), (signal.SIGINT,)),
    ],
    ids=["ctrl-c", "sigterm", "sighup", "ctrl-c at the start"],
)
def test_a_signal_ends_every_process_of_the_run(hpcdist, processes_of, until, size, numbers):
    hpcdist.write("ticks.py", TICKS)
    nodes, gpus = size
    words = ("submit", "ticks.py", "--nodes", nodes, "--gpus", gpus, "--local")
    terminal = Terminal(hpcdist, *words)
    terminal.wait_for(until)
    for number in numbers:
        if number == signal.SIGINT:
            terminal.press_ctrl_c()
        else:
            terminal.process.send_signal(number)
    assert terminal.finish() == 130, terminal.shown
    assert_gone_and_readable(hpcdist, processes_of)
    assert " cancelled" in terminal.shown.splitlines()[-1]
    assert "Traceback" not in terminal.shown


SAVES_FOR_LONG = """
import os, time
from pathlib import Path
Path(os.environ["HPCDIST_RUN_DIR"], "checkpoints", "step-00000004.ckpt").touch()
print("ticking", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    print("saving", flush=True)
    time.sleep(600)
"""


def test_a_second_ctrl_c_ends_ranks_that_save_and_the_last_line_says_how_to_go_on(
    hpcdist, processes_of
):
    hpcdist.write("saves.py", SAVES_FOR_LONG)
    terminal = Terminal(hpcdist, "submit", "saves.py", "--local", columns=200, rows=50)
    terminal.wait_for("ticking")
    terminal.press_ctrl_c()
    terminal.wait_for("launch.grace_s")
    time.sleep(0.6)  # sooner, another signal may be the first one, passed on by another program
    terminal.press_ctrl_c()
    assert terminal.finish() == 130, terminal.shown
    assert_gone_and_readable(hpcdist, processes_of)
    (run,) = hpcdist.runs
    sentence = f"run {run.name} cancelled; continue with: hpcdist resume {run.name}\r\n"
    assert terminal.shown.endswith(sentence), terminal.shown
    assert "saving" in Run(run).log_file(0, 0).read_text()


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
    assert "continues; end it with: hpcdist cancel" in terminal.shown
    assert json.loads(hpcdist("status", "--json").stdout)[0]["state"] == "running"
    assert hpcdist("cancel", "last").returncode == 0
    assert_gone_and_readable(hpcdist, processes_of)


def test_progress_is_drawn_on_a_terminal_and_nowhere_else(hpcdist):
    hpcdist.write("recorded.py", RECORDED)
    recorded = ("submit", "recorded.py", "--local", "--set", "record.window_s=0.05")
    terminal = Terminal(hpcdist, *recorded)
    terminal.wait_for("samples/s")
    assert terminal.finish() == 0
    assert ": done in " in terminal.shown.splitlines()[-2]
    assert "\x1b[?25h" in terminal.shown  # the cursor is back
    plain = hpcdist(*recorded)
    assert plain.returncode == 0
    assert plain.stdout == "[rank 0] over\n"
    assert "\x1b" not in plain.stderr
    assert "samples/s" not in plain.stderr


def test_bars_are_drawn_while_they_go_on_and_are_a_line_each_in_the_end(hpcdist):
    hpcdist.write("bars.py", BARS)
    terminal = Terminal(hpcdist, "submit", "bars.py", "--gpus", "2", "--local")
    terminal.resize(rows=40, columns=120)
    for rank in (0, 1):
        terminal.wait_for(f"outer of {rank}:   0%|")
    hpcdist.write("released", "")
    for rank in (0, 1):
        terminal.wait_for(f"last words of {rank}")
    hpcdist.write("over", "")
    assert terminal.finish() == 1
    for rank in (0, 1):
        for line in (f"epoch 1 of {rank}", f"outer of {rank}: 100%|"):
            assert line in terminal.shown

    plain = hpcdist("logs", "last")
    for rank in (0, 1):  # finished lines, and what was open when the ranks were killed
        of_rank = [one for one in plain.stdout.splitlines() if one.startswith(f"[rank {rank}]")]
        first, second, bar, last = (one.removeprefix(f"[rank {rank}] ") for one in of_rank)
        assert (first, second) == (f"epoch 0 of {rank}", f"epoch 1 of {rank}")
        assert bar.startswith(f"outer of {rank}: 100%|")
        assert last == f"last words of {rank}"
    assert not {"\x1b", "\r"} & {*plain.stdout, *plain.stderr}
    log = Run(hpcdist.runs[-1]).log_file(0).read_bytes()
    assert log.count(b"\r") > 20  # as it was written


def test_no_color_is_honoured(hpcdist):
    for value, begin in (("1", "error: there is no job"), ("", "\x1b[31m")):
        hpcdist.environment["NO_COLOR"] = value
        terminal = Terminal(hpcdist, "submit", "nothing")
        assert terminal.finish() == 2
        assert terminal.shown.startswith(begin)
