"""Starting a job again from within, where brequeue refuses or LSF does not answer."""

import json
import os
import time

import pytest
from another_user import NOBODY, needs_root

from hpcdist.base.errors import SchedulerError
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.lsf import lsf
from hpcdist.schedulers.lsf.lsf import Lsf
from hpcdist.schedulers.requeue import RequeueRefusedError

NAME = "train-1"
SCRIPT = f"#!/bin/bash\n#BSUB -J {NAME}\n#BSUB -W 01:00\n#BSUB -w done(5) -ti\ntrue\n"
SUBMITTED = "Job <9> is submitted to queue <normal>."
REFUSAL = "Job <7>: User permission denied\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose job, 7, is this process."""
    run = Run(tmp_path / "runs" / NAME)
    (run.path / "submitit").mkdir(parents=True)
    run.attempts_folder.mkdir()
    (run.path / "script.sh").write_text(SCRIPT)
    submission = {"job_id": "7", "job_name": NAME, "folder": str(run.path)}
    run.submission_file.write_text(json.dumps(submission))
    monkeypatch.setenv("LSB_JOBID", "7")
    monkeypatch.setenv("LSB_JOBINDEX", "0")
    run.path.chmod(0o700)
    return run


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(lsf, "_TIMEOUT_S", 0.5)
    monkeypatch.setattr(lsf, "_END_IS_KNOWN_S", 0.0)
    monkeypatch.setattr(lsf, "_POLL_S", 0.01)


COLUMNS = (
    "JOBID|STAT|EXEC_HOST|START_TIME|FINISH_TIME|RUN_TIME|EXIT_CODE|EXIT_REASON|"
    "ESTIMATED_START_TIME|MAX_MEM|PEND_TIME|JOB_NAME|PEND_REASON\n"
)


def list_jobs(commands, *jobs):
    """Have bjobs say ids, states and names."""
    rows = [f"{job_id}|{stat}|hostA{'|-' * 8}|{name}|-\n" for job_id, stat, name in jobs]
    commands.say("bjobs", COLUMNS + "".join(rows))


def bsub_calls(commands):
    return [call for call in commands.calls if call.startswith("bsub")]


def test_where_brequeue_is_refused_the_run_is_submitted_as_another_job(run, commands):
    commands.say("brequeue", err=REFUSAL, code=255)
    commands.add("bsub", f"cat > {run.path}/sent; echo '{SUBMITTED}'")
    Lsf().requeue(run)
    sent = f"#!/bin/bash\n#BSUB -J {NAME}\n#BSUB -W 01:00\ntrue\n"
    assert (run.path / "sent").read_text() == sent
    submission = run.read_submission()
    assert (submission.job_id, submission.former_job_ids) == ("9", ["7"])


def test_an_element_goes_on_as_an_element_of_its_place(run, commands, monkeypatch):
    monkeypatch.setenv("LSB_JOBINDEX", "3")
    monkeypatch.setenv("HPCDIST_JOB_PLACE", "3")
    script = SCRIPT.replace(f"-J {NAME}", f'-J "{NAME}[1-20]%4"')
    (run.path / "script.sh").write_text(script)
    commands.say("brequeue", err=REFUSAL, code=255)
    commands.add("bsub", f"cat > {run.path}/sent; echo '{SUBMITTED}'")
    Lsf().requeue(run)
    assert f'#BSUB -J "{NAME}[3]"\n' in (run.path / "sent").read_text()
    assert run.read_job_id() == "9[3]"


def test_what_means_the_hosts_of_the_job_before_does_not_go_into_the_new_one(
    run, commands, monkeypatch
):
    for name in ("CUDA_VISIBLE_DEVICES", "TMPDIR", "LSB_HOSTS", "MINE", "LSB_DEFAULTQUEUE"):
        monkeypatch.setenv(name, "of-7")
    commands.say("brequeue", err=REFUSAL, code=255)
    commands.add(
        "bsub", f"while read -r line; do :; done; set > {run.path}/env; echo '{SUBMITTED}'"
    )
    Lsf().requeue(run)
    seen = (run.path / "env").read_text().splitlines()
    assert [line for line in seen if line.endswith("=of-7")] == [
        "LSB_DEFAULTQUEUE=of-7",
        "MINE=of-7",
    ]


@pytest.mark.usefixtures("impatient")
def test_a_refusal_after_a_brequeue_without_an_answer_makes_no_second_job(run, commands):
    commands.add("brequeue", "exec sleep 60")
    commands.say("bsub", SUBMITTED)
    requeuer = Lsf()
    with pytest.raises(SchedulerError, match="did not answer"):
        requeuer.requeue(run)
    commands.say("brequeue", err="Job <7>: Operation is in progress\n", code=255)
    requeuer.requeue(run)
    assert bsub_calls(commands) == []
    assert run.read_job_id() == "7"


def test_a_new_job_of_which_bsub_does_not_tell_is_found_by_its_name(run, commands):
    commands.say("brequeue", err=REFUSAL, code=255)
    commands.say("bsub", "welcome to the cluster\n")
    jobs = ("7", "RUN", NAME), ("3", "EXIT", NAME), ("8", "RUN", "other"), ("9", "PEND", NAME)
    list_jobs(commands, *jobs)
    Lsf().requeue(run)
    assert run.read_job_id() == "9"
    assert len(bsub_calls(commands)) == 1


def test_a_new_job_of_which_nobody_tells_is_not_submitted_twice(run, commands):
    commands.say("brequeue", err=REFUSAL, code=255)
    commands.say("bsub", "welcome to the cluster\n")
    commands.say("bjobs", err="LSF is down. Please wait ...\n", code=255)
    requeuer = Lsf()
    with pytest.raises(SchedulerError, match="not known whether"):
        requeuer.requeue(run)
    requeuer.requeue(run)
    assert len(bsub_calls(commands)) == 1


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


@needs_root
@pytest.mark.parametrize("what", ["", "script.sh", "submission.json"])
def test_a_script_that_may_be_somebody_elses_by_now_is_not_submitted(run, commands, what):
    commands.say("brequeue", err=REFUSAL, code=255)
    commands.add("bsub", f"echo '{SUBMITTED}'")
    os.chown(run.path / what, NOBODY, NOBODY)
    with pytest.raises(RequeueRefusedError, match="belongs to nobody, and the job is root's"):
        Lsf().requeue(run)
    assert bsub_calls(commands) == []
