"""A cancel where Slurm does not list its jobs."""

import os

import pytest

from hpcdist.base.errors import SchedulerError
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.schedulers.slurm.slurm import scheduler


def test_a_known_job_is_ended_and_what_is_not_known_is_said(tmp_path, monkeypatch):
    for name, text in (
        ("squeue", "echo no socket >&2; exit 1"),
        ("scancel", f"echo $* > {tmp_path}/ended"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    run = Run.create(tmp_path, "ddp")
    run.write_submission(Submission(scheduler="slurm", job_id="7", job_name=run.id))
    with pytest.raises(SchedulerError, match="Slurm was told to end 7; whether anything is left"):
        scheduler.cancel([run])
    assert (tmp_path / "ended").read_text() == "--quiet 7\n"
    assert run.cancel_file.exists()
    assert run.read_verdict() is None
