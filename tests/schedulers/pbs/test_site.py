"""Whether PBS is here, and what is refused with it."""

import pytest

from hpcdist.base.errors import UserError
from hpcdist.schedulers.pbs.scheduler import scheduler


@pytest.mark.parametrize(
    ("said", "code", "is_here"),
    [
        ("pbs_version = 23.06.06", 0, True),
        ("Version: 6.1.2\nCommit: 66101", 0, False),  # TORQUE
        ("Unknown option --version", 7, False),  # Grid Engine
    ],
)
def test_other_programs_called_qsub_are_not_taken_for_pbs(
    tmp_path, monkeypatch, said, code, is_here
):
    (tmp_path / "qsub").write_text(f"#!/bin/sh\necho '{said}'\nexit {code}\n")
    (tmp_path / "qsub").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert scheduler.answers() is is_here


def test_a_run_within_a_job_of_pbs_is_refused_with_what_to_do():
    assert scheduler.find_allocation({}) is None
    with pytest.raises(UserError, match="--here is not supported with PBS yet"):
        scheduler.find_allocation({"PBS_JOBID": "7.pbs"})
