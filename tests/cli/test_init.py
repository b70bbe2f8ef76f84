"""`hpcdist init` makes what runs as it is, and `hpcdist open` shows the page of the run."""

import stat
import subprocess
import sys
from pathlib import Path

from terminals import Terminal

from hpcdist.job import load_job

ROOT = Path(__file__).parents[2]


def test_a_script_is_the_example_and_nothing_is_overwritten(hpcdist):
    done = hpcdist("init", "--yes")
    assert done.stdout == "train.py\n"
    assert "hpcdist submit train.py --gpus 2 --local" in done.stderr
    made = (hpcdist.folder / "train.py").read_text()
    example = (ROOT / "examples" / "ddp_digits.py").read_text()
    assert made == example.replace("examples/ddp_digits.py", "train.py")
    again = hpcdist("init", "--yes")
    assert again.returncode == 2
    assert "train.py exists already, and was not changed" in again.stderr
    bad = hpcdist("init", "../x", "--yes")
    assert bad.returncode == 2
    assert "NAME is '../x'" in bad.stderr
    unasked = hpcdist("init", "x")
    assert unasked.returncode == 2
    assert "no terminal to ask on" in unasked.stderr


def test_a_job_file_runs_as_it_is_and_the_page_of_its_run_is_opened(hpcdist, monkeypatch):
    terminal = Terminal(hpcdist, "init", rows=24)
    for question, answer in (("what to make", b"job\n"), ("name", b"mine\n"), ("GPUs", b"1\n")):
        terminal.wait_for(question)
        terminal.type(answer)
    assert terminal.finish() == 0, terminal.shown
    assert "hpcdist submit mine --local" in terminal.shown
    monkeypatch.chdir(hpcdist.folder)
    job = load_job("mine").job
    assert (job.resources.gpus, job.description) == (1, "mine, made by hpcdist init")
    done = hpcdist("submit", "mine", "--local", "--set", "train.max_steps=2")
    assert done.returncode == 0, done.stderr

    (run,) = hpcdist.runs
    hpcdist.environment |= {"DISPLAY": "", "WAYLAND_DISPLAY": ""}
    page = run / "summary.html"
    printed = hpcdist("open", "last")
    assert (printed.stdout, printed.returncode) == (f"{page}\n", 0)
    assert f":{page} ." in printed.stderr
    made_ns = page.stat().st_mtime_ns
    assert b"<title>Summary of 1 run</title>" in page.read_bytes()
    folder = hpcdist.folder / "bin"
    folder.mkdir()
    opener = folder / ("open" if sys.platform == "darwin" else "xdg-open")
    opener.write_text(f'#!/bin/sh\nprintf %s "$1" > {folder}/opened\n')
    opener.chmod(stat.S_IRWXU)
    path = subprocess.check_output(["sh", "-c", "printf %s $PATH"], text=True)
    hpcdist.environment |= {"DISPLAY": ":9", "PATH": f"{folder}:{path}"}
    assert hpcdist("open", run.name).stdout == ""
    assert (folder / "opened").read_text() == str(page)
    assert page.stat().st_mtime_ns == made_ns
    assert hpcdist("open", run.name, "--folder").returncode == 0
    assert (folder / "opened").read_text() == str(run)
