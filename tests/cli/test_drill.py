"""`hpcdist drill`: what a job would have lost is told, and nothing else is."""

import json

from held_model import HELD_MODEL

CPU = ("--set", "launch.device=cpu", "--gpus", "2", "--local", "--for", "30")
CAREFUL = """\
import os, sys, time
from pathlib import Path
from hpcdist import record
folder, rank = Path(os.environ["HPCDIST_RUN_DIR"]), int(os.environ["RANK"])
saved = sorted(folder.glob("*.ckpt"))
step = int(saved[-1].read_text()) if saved else 0
def save():
    if rank == 0:
        Path("mine.pt").write_text("written over")
        (folder / "new").write_text(str(step))
        (folder / "new").rename(folder / f"{step:06d}.ckpt")
record.start(first_step=step)
while True:
    time.sleep(0.02)
    step += 1
    record.step(samples=1, loss=1 / step)
    if record.should_stop():
        save()
        sys.exit(record.EXIT_STOPPED)
    if step % 10 == 0:
        save()
"""
CARELESS = """\
import time
from hpcdist import record
record.start()
while True:
    time.sleep(0.02)
    record.step(samples=1)
"""


def only(*names):
    return [word for name in names for word in ("--only", name)]


def test_a_trainer_goes_on_from_its_checkpoint_whatever_happens_to_it(hpcdist):
    hpcdist.write("held.py", HELD_MODEL)
    job = ("ddp", "--set", "model.name=held:HeldModel", *CPU)
    done = hpcdist("drill", *job, *only("full-disk", "damage"), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["disturbances"]
    assert [one["name"] for one in found] == ["full-disk", "damage"]
    for one in found:
        assert one["verdict"] in {"signal", "exception", "exit"}, one
        assert one["went_on"].startswith("step "), one
        assert one["lost_steps"] is not None, one
        assert one["down_s"] > 0, one


def test_a_script_that_saves_on_the_warning_passes_and_real_files_and_runs_are_left_alone(hpcdist):
    hpcdist.write("mine.pt", "real")
    script = hpcdist.write("careful.py", CAREFUL)
    done = hpcdist("drill", script, *CPU, *only("kill-rank", "time-limit", "kill-agent"))
    assert done.returncode == 0, (done.stdout, done.stderr)
    rows = {line.split()[0]: line for line in done.stdout.splitlines()[1:] if line.strip()}
    assert "signal" in rows["kill-rank"]
    assert "step" in rows["kill-rank"]
    assert " 0 steps" in rows["time-limit"]
    assert "agent_lost" in rows["kill-agent"]
    assert "WORK LOST" not in done.stdout
    assert (hpcdist.folder / "mine.pt").read_text() == "real"
    assert not (hpcdist.folder / "runs" / ".drills").exists()
    assert "there are no runs" in hpcdist("status", "last").stderr


def test_a_script_that_saves_nothing_would_have_lost_its_day(hpcdist):
    hpcdist.write("careless.py", CARELESS)
    done = hpcdist("drill", "careless.py", *CPU, *only("kill-rank"), "--time", "24:00:00")
    assert done.returncode == 1, done.stderr
    (lost,) = [line for line in done.stdout.splitlines() if "WORK LOST" in line]
    assert "no checkpoint is saved: you would lose up to 24 h" in lost
    (kept,) = (hpcdist.folder / "runs" / ".drills").iterdir()
    assert str(kept) in done.stderr


def test_a_wrong_drill_is_refused(hpcdist):
    for words, said in (
        (("ddp", "--only", "kill-rnak"), "did you mean kill-rank?"),
        (("allreduce",), "has no work to lose"),
    ):
        done = hpcdist("drill", *words, "--local")
        assert done.returncode == 2
        assert said in done.stderr
