"""What the doctor asks of LSF, and makes of its answers."""

from pathlib import Path

import pytest

from hpcdist.schedulers.lsf.lsf import scheduler

RECORDED = Path(__file__).parents[1] / "schedulers" / "lsf" / "recorded"


def recorded(name):
    return (RECORDED / name).read_text()


@pytest.fixture
def say(tmp_path, monkeypatch):
    """Make a command that says something; none of a real scheduler is on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "cat"):
        (folder / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("LSB_DEFAULTQUEUE", raising=False)

    def make(name, out="", *, err="", code=0):
        (folder / f"{name}.out").write_text(out)
        (folder / f"{name}.err").write_text(err)
        script = f"#!/bin/bash\ncat $0.out; cat $0.err >&2; exit {code}\n"
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)

    return make


FIELDS = recorded("bjobs_fields.txt")


@pytest.fixture
def site(say):
    say("bsub", err="IBM Spectrum LSF 10.1.0.12, Aug 04 2021\nCopyright IBM Corp.\n")
    say("bqueues", recorded("bqueues_long.txt"))
    say("bjobs", FIELDS)
    say("bkill")
    return say


def examine():
    return list(scheduler.examine(None, None))


def test_a_site_that_answers_passes(site):
    (controller,) = examine()
    assert controller.state == "pass"
    assert controller.detail == "IBM Spectrum LSF 10.1.0.12, Aug 04 2021 lists 5 jobs of yours"


@pytest.mark.parametrize("said", ["LSF is down. Please wait ...", "something else"])
def test_daemons_that_do_not_answer_fail(site, said):
    site("bjobs", err=f"{said}\n", code=255)
    controller = examine()[-1]
    assert controller.state == "FAIL"
    assert said in controller.detail
