"""Whether PBS is here, and what is refused with it."""

import pytest

from hpcdist.base.files import shipped_folder
from hpcdist.cluster.load import load_profile
from hpcdist.job.spec import Resources, ScriptJob
from hpcdist.schedulers.base import Target
from hpcdist.schedulers.pbs.request import directives
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


def test_the_profile_that_is_shipped_can_be_asked_for(tmp_path, monkeypatch):
    text = (shipped_folder("templates") / "clusters" / "pbs.yaml").read_text()
    (tmp_path / "hpcdist.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    job = ScriptJob(name="train", script="/train.py", resources=Resources(nodes=2, gpus=2))
    target = Target(name="RUN", folder=tmp_path, cwd="/")
    selects = [directives(job, load_profile(name).profile, target)[1] for name in ("gpu", "cpu")]
    assert selects == ["-l select=2:ncpus=8:mem=61036mb:ngpus=2", "-l select=2:ncpus=2"]
