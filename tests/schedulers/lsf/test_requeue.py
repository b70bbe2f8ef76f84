"""Starting a job again from within, where brequeue refuses or LSF does not answer."""

import time

import pytest

from hpcdist.machine.command import CommandFailedError
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.lsf import lsf
from hpcdist.schedulers.lsf.lsf import Lsf
from hpcdist.schedulers.requeue import RequeueRefusedError

REFUSAL = "Job <7>: User permission denied\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose job, 7, is this process."""
    run = Run(tmp_path / "runs" / "train-1")
    (run.path / "submitit").mkdir(parents=True)
    run.attempts_folder.mkdir()
    monkeypatch.setenv("LSB_JOBID", "7")
    monkeypatch.setenv("LSB_JOBINDEX", "0")
    run.path.chmod(0o700)
    return run


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(lsf, "_END_IS_KNOWN_S", 0.0)


def test_where_brequeue_is_refused_the_run_ends(run, commands):
    commands.say("brequeue", err=REFUSAL, code=255)
    with pytest.raises(RequeueRefusedError, match="User permission denied"):
        Lsf().requeue(run)
    commands.say("brequeue", err="LSF is down. Please wait ...\n", code=255)
    with pytest.raises(CommandFailedError):  # it is asked again
        Lsf().requeue(run)


@pytest.fixture
def first_end(run, monkeypatch):
    """The file that the program on the first host writes when its command has ended."""
    file = run.path / "submitit" / "7.first_end"
    monkeypatch.setenv("HPCDIST_JOB_FIRST_END", str(file))
    monkeypatch.setenv("HPCDIST_JOB_HOSTS", "hostA 1 hostB 1")
    return file


def lost(node, kind="agent_lost", **values):
    return Verdict(kind=kind, message="lost", time_s=time.time(), node=node, **values)


@pytest.mark.parametrize(
    ("node", "said", "sequel"),
    [
        pytest.param(0, "killed", "open", id="killed"),
        pytest.param(0, "ended", "requeue", id="agent-of-first-host-lost"),
        pytest.param(0, None, "leave", id="first-host-lost"),
        pytest.param(1, None, "requeue", id="other-host-lost"),
    ],
)
@pytest.mark.usefixtures("run", "impatient")
def test_the_first_host_tells_the_others_how_its_agent_ended(node, said, sequel, first_end):
    if said:
        first_end.write_text(said)
    assert Lsf().decide(lost(node)).sequel == sequel
