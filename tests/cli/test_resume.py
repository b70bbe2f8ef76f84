"""`hpcdist resume`: a run of this machine goes on in its directory, and others are refused; and the
other commands that hpcdist prints work as they are, where the user stands."""

import json
import re

from hpcdist.runs.run import Run

CPU = ("--set", "launch.device=cpu", "--gpus", "1")
SAVES = """\
import os, sys
from pathlib import Path
saved = Path(os.environ["HPCDIST_RUN_DIR"], "saved")
print("from", saved.read_text() if saved.exists() else "the start", flush=True)
saved.write_text("7")
sys.exit(0 if Path("mended").exists() else 3)
"""


def test_a_failed_run_goes_on_where_its_program_stopped_and_is_one_run(hpcdist):
    hpcdist.write("job.py", SAVES)
    assert hpcdist("submit", "job.py", "--local", *CPU).returncode == 1
    failed = Run(*hpcdist.runs)
    assert_refused(hpcdist, failed)
    again = hpcdist("resume", "last")
    assert again.returncode == 1, again.stderr
    assert "from 7" in again.stdout
    assert "from the start" not in again.stdout  # it was shown before
    assert "attempt 0 failed" in again.stderr
    assert "hpcdist resume has started it again" in again.stderr
    hpcdist.write("mended", "")
    done = hpcdist("resume", failed.id, "--wait", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "done"
    assert [failed.read_beginning(number).life for number in range(3)] == [0, 1, 2]
    assert failed.read_attempt_verdict(1).first.exit_code == 3
    (summary,) = json.loads(hpcdist("summary", "--json").stdout)
    assert (summary["state"], summary["restarts"]) == ("done", 2)
    over = hpcdist("resume", failed.id)
    assert over.returncode == 2
    assert "is done" in over.stderr
    assert "checkpoint.resume" not in over.stderr  # a key of trainers


def assert_refused(hpcdist, run):
    """What would be another run is refused, and what lacks its files, and nothing is changed."""
    before = {path.name: path.stat().st_mtime_ns for path in run.path.iterdir()}
    done = hpcdist("resume", run.id, "--set", "resources.nodes=2")
    assert done.returncode == 2
    assert "resources.nodes stays as it is" in done.stderr
    assert hpcdist("resume", "nosuch").returncode == 2
    (hpcdist.folder / "job.py").rename(hpcdist.folder / "moved.py")
    gone = hpcdist("resume", run.id)
    assert gone.returncode == 2
    assert "job.py is gone" in gone.stderr
    (hpcdist.folder / "moved.py").rename(hpcdist.folder / "job.py")
    assert {path.name: path.stat().st_mtime_ns for path in run.path.iterdir()} == before
    assert run.read_verdict().state == "failed"


def printed(done):
    """Return the commands about a run that were printed, each as its words."""
    text = re.sub(r"\n +(?!hpcdist)", " ", done.stdout + done.stderr)  # long lines go on in others
    return [words.split() for words in re.findall(r"hpcdist ((?:[a-z-]+ ?)+[\w./-]*)", text)]


def test_printed_commands_work_as_they_are_where_the_user_stands(hpcdist):
    options = ("--runs", "else/where")
    hpcdist.write("fails.py", "import sys; sys.exit(3)\n")
    failed = hpcdist("submit", "fails.py", "--local", *CPU, *options)
    assert failed.returncode == 1, failed.stderr
    explained = hpcdist("explain", "last", *options)
    resumed = hpcdist("resume", "last", "--detach", *options)
    lists = [hpcdist(verb, *options) for verb in ("runs", "status", "summary")]
    assert "hpcdist summary --" not in lists[2].stdout
    commands = [*printed(explained), *printed(resumed), *printed(lists[0])]
    assert {words[0] for words in commands} == {"logs", "status", "cancel"}
    for words in commands:
        done = hpcdist(*words)
        assert done.returncode == 0, (words, done.stderr)
