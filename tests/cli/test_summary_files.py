"""`hpcdist summary` as files: what stands where, and what is said."""

import csv
import io
import json

import pytest

from hpcdist.base import files
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict

DONE = Verdict(kind="done", state="done", message="every rank ended well", exit_code_of_run=0)


def window(step):
    times = {"sum": 1.0, "sumsq": 0.1, "min": 0.1, "max": 0.1}
    counts = {"step": step, "steps": 10, "samples": 100, "wall_s": 1.0, "loss": 1.0 / step}
    phases = {"step_time_s": times, "phases_s": {"data_wait": 0.5}, "mean_loss": 1.0 / step}
    return {"event": "steps", "time_s": 100.0 + step / 10} | counts | phases


@pytest.fixture
def user(hpcdist):
    """A folder with one run of three windows."""
    run = Run(hpcdist.folder / "runs" / "ddp-1")
    for folder in (run.events_folder, run.attempts_folder):
        folder.mkdir(parents=True)
    job = {"name": "ddp", "workload": "train", "resources": {"nodes": 1, "gpus": 1}}
    files.write_json(run.spec_file, {"job": job, "scheduler": "local"})
    files.write_json(run.submission_file, {"scheduler": "local", "job_id": "1"})
    run.write_verdict(DONE)
    start = {"event": "start", "time_s": 99.0, "world_size": 1}
    events = [start, *map(window, (10, 20, 30)), {"event": "end", "time_s": 110.0}]
    run.event_file(0).write_text("".join(json.dumps(event) + "\n" for event in events))
    return hpcdist


def test_all_forms_are_written_at_once_and_the_tables_stay_on_stdout(user):
    options = ["--csv", "a.csv", "--markdown", "a.md", "--html", "a.html", "--plot", "pictures"]
    done = user("summary", *options)
    assert done.returncode == 0, done.stderr
    assert "samples/s" in done.stdout
    assert "note: 1 picture, as PNG: pictures" in done.stderr
    names = {path.name for path in (user.folder / "pictures").iterdir()}
    assert names == {"ddp-learning.png"}
    (line,) = csv.DictReader(io.StringIO((user.folder / "a.csv").read_text()))
    assert float(line["samples_per_s.mean"]) == pytest.approx(100.0)
    assert "| 100" in (user.folder / "a.md").read_text()
    page = (user.folder / "a.html").read_text()
    assert page.count("<svg") == 1


def test_a_dash_is_stdout_in_the_place_of_the_tables(user):
    with (user.folder / "runs/ddp-1/events/rank-00000.jsonl").open("a") as file:
        file.write("torn")
    for option, begins in (("--csv", "schema,run,"), ("--html", "<!DOCTYPE html>")):
        done = user("summary", option, "-")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(begins)
        assert "rank-00000.jsonl: 1 torn line skipped" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--csv", "-", "--json"], "--csv - and --json contradict each other"),
        (["--csv", "missing/a.csv"], "missing/a.csv: the CSV cannot be written: No such file"),
        (["--plot", "notes"], "notes: pictures cannot be written: File exists"),
        (["--goal", "speed=3"], "must be accuracy=SHARE (such as 97%), loss=NUMBER or train_loss"),
    ],
)
def test_what_cannot_be_written_is_said_in_one_line(user, options, message):
    (user.folder / "notes").touch()
    done = user("summary", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
