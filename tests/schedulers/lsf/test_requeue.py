"""Starting a job again from within, where brequeue refuses or LSF does not answer."""

import time

import pytest

from hpcdist.base.errors import SchedulerError
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
    monkeypatch.setattr(lsf, "_TIMEOUT_S", 0.5)
    monkeypatch.setattr(lsf, "_END_IS_KNOWN_S", 0.0)
    monkeypatch.setattr(lsf, "_POLL_S", 0.01)


def test_where_brequeue_is_refused_the_run_ends(run, commands):
    commands.say("brequeue", err=REFUSAL, code=255)
    with pytest.raises(RequeueRefusedError, match="User permission denied"):
        Lsf().requeue(run)
    commands.say("brequeue", err="LSF is down. Please wait ...\n", code=255)
    with pytest.raises(CommandFailedError):  # it is asked again
        Lsf().requeue(run)


@pytest.mark.usefixtures("impatient")
def test_a_refusal_after_a_brequeue_without_an_answer_is_none(run, commands):
    commands.add("brequeue", "exec sleep 60")
    requeuer = Lsf()
    with pytest.raises(SchedulerError, match="did not answer"):
        requeuer.requeue(run)
    commands.say("brequeue", err="Job <7>: Operation is in progress\n", code=255)
    requeuer.requeue(run)  # which was heard


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


@pytest.mark.usefixtures("impatient")
def test_a_host_that_is_lost_at_the_launch_is_not_asked_for_again_before_lsf_knows(run, commands):
    run.claim_attempt()
    run.write_attempt_verdict(lost(1, "launch", host="hostB", try_elsewhere=True))
    hosts = "HOST_NAME STATUS JL/U MAX NJOBS\nhostA ok - 4 0\nhostB {} - 4 0\n"
    (run.path / "before").write_text(hosts.format("ok"))
    (run.path / "after").write_text(hosts.format("unavail"))
    seen = f"{run.path}/seen"
    commands.add(
        "bhosts", f"cat {run.path}/$([ -e {seen} ] && echo after || echo before); : > {seen}"
    )
    commands.say("brequeue")
    Lsf().requeue(run)
    assert commands.calls == ["bhosts -w", "bhosts -w", "brequeue 7"]
