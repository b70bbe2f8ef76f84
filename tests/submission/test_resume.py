"""Runs that cannot be resumed, and what their user reads."""

import pytest

from hpcdist.base.errors import RunDirectoryError
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.submission.resume import look_at


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
