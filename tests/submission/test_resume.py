"""Runs that cannot be resumed, and what their user reads."""

import errno
import os
from pathlib import Path

import pytest

from hpcdist.base.errors import HpcdistError, RunDirectoryError
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.submission.resume import _reopened, look_at


@pytest.mark.parametrize("content", ["", '{"job": ', "[]"])
def test_resume_says_of_a_damaged_spec_what_status_says(tmp_path, content):
    run = Run(tmp_path / "runs" / "train-1")
    run.path.mkdir(parents=True)
    run.spec_file.write_text(content)
    failed = Verdict(kind="launch", state="failed", message="no start", exit_code_of_run=1)
    run.write_verdict(failed)

    with pytest.raises(RunDirectoryError) as refused:
        look_at(run)

    assert str(refused.value) == f"{run.path}: {run.describe_damage()}"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.EROFS, "cannot be renamed to launch.before: Read-only file system"),
        (errno.ENOENT, "cannot be renamed to launch.before: "),
        (errno.ENOTEMPTY, "cannot be renamed to launch.before: "),
    ],
)
def test_resume_says_why_a_run_cannot_be_reopened(tmp_path, monkeypatch, code, said):
    run = Run(tmp_path / "train-1")
    run.launch_folder.mkdir(parents=True)
    failed = Verdict(kind="launch", state="failed", message="no start", exit_code_of_run=1)

    def refuse(self, target):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(HpcdistError, match=said), _reopened(run, failed):
        pytest.fail("it was reopened")
