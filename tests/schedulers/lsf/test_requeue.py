"""Starting a job again from within, where brequeue refuses or LSF does not answer."""

import json
import os
import time

import pytest
from another_user import NOBODY, needs_root

from hpcdist.base.errors import SchedulerError
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.lsf import requeue
from hpcdist.schedulers.lsf.requeue import LsfRequeuer
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
    monkeypatch.setattr(requeue, "_TIMEOUT_S", 0.5)
    monkeypatch.setattr(requeue, "_END_IS_KNOWN_S", 0.0)
    monkeypatch.setattr(requeue, "_POLL_S", 0.01)
    monkeypatch.setattr(requeue, "_LSF_POLL_S", 0.01)


def job(job_id, stat, name=NAME, **values):
    return {"JOBID": job_id, "JOB_NAME": name, "STAT": stat, "EXEC_HOST": "hostA"} | values


def list_jobs(commands, *jobs):
    commands.say("bjobs", json.dumps({"COMMAND": "bjobs", "RECORDS": jobs}))


def bsub_calls(commands):
    return [call for call in commands.calls if call.startswith("bsub")]


def test_where_brequeue_is_refused_the_run_is_submitted_as_another_job(run, commands):
    commands.say("brequeue", err=REFUSAL, code=255)
    commands.add("bsub", f"cat > {run.path}/sent; echo '{SUBMITTED}'")
    LsfRequeuer().requeue(run)
    assert bsub_calls(commands) == [f"bsub -J {NAME}"]
    assert (run.path / "sent").read_text() == "#!/bin/bash\n#BSUB -W 01:00\ntrue\n"
    submission = run.read_submission()
    assert (submission.job_id, submission.former_job_ids) == ("9", ["7"])


def test_what_means_the_hosts_of_the_job_before_does_not_go_into_the_new_one(
    run, commands, monkeypatch
):
    for name in ("CUDA_VISIBLE_DEVICES", "TMPDIR", "LSB_HOSTS", "MINE", "LSB_DEFAULTQUEUE"):
        monkeypatch.setenv(name, "of-7")
    commands.say("brequeue", err=REFUSAL, code=255)
    commands.add(
        "bsub", f"while read -r line; do :; done; set > {run.path}/env; echo '{SUBMITTED}'"
    )
    LsfRequeuer().requeue(run)
    seen = (run.path / "env").read_text().splitlines()
    assert [line for line in seen if line.endswith("=of-7")] == [
        "LSB_DEFAULTQUEUE=of-7",
        "MINE=of-7",
    ]


@pytest.mark.usefixtures("impatient")
def test_a_refusal_after_a_brequeue_without_an_answer_makes_no_second_job(run, commands):
    commands.add("brequeue", "exec sleep 60")
    commands.say("bsub", SUBMITTED)
    requeuer = LsfRequeuer()
    with pytest.raises(SchedulerError, match="did not answer"):
        requeuer.requeue(run)
    commands.say("brequeue", err="Job <7>: Operation is in progress\n", code=255)
    requeuer.requeue(run)
    assert bsub_calls(commands) == []
    assert run.read_job_id() == "7"


def test_a_new_job_of_which_bsub_does_not_tell_is_found_by_its_name(run, commands):
    commands.say("brequeue", err=REFUSAL, code=255)
    commands.say("bsub", "welcome to the cluster\n")
    list_jobs(
        commands, job("7", "RUN"), job("3", "EXIT"), job("8", "RUN", "other"), job("9", "PEND")
    )
    LsfRequeuer().requeue(run)
    assert run.read_job_id() == "9"
    assert len(bsub_calls(commands)) == 1


def test_a_new_job_of_which_nobody_tells_is_not_submitted_twice(run, commands):
    commands.say("brequeue", err=REFUSAL, code=255)
    commands.say("bsub", "welcome to the cluster\n")
    commands.say("bjobs", err="LSF is down. Please wait ...\n", code=255)
    requeuer = LsfRequeuer()
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
        pytest.param(1, None, "requeue", id="other-host-lost"),
    ],
)
@pytest.mark.usefixtures("run", "impatient")
def test_the_first_host_tells_the_others_how_its_agent_ended(node, said, sequel, first_end):
    if said:
        first_end.write_text(said)
    assert LsfRequeuer().decide(lost(node)).sequel == sequel


@pytest.mark.parametrize(
    ("ends_as", "num_submitted"),
    [
        pytest.param(job("7", "PEND"), 0, id="lsf-starts-it-again"),
        pytest.param(job("7", "RUN", EXEC_HOST="hostC:hostD"), 0, id="lsf-has-started-it-again"),
        pytest.param(job("7", "EXIT", EXIT_REASON="TERM_OWNER: killed"), 0, id="killed-meanwhile"),
        pytest.param(job("7", "EXIT", EXIT_REASON="TERM_ZOMBI: exited"), 1, id="over"),
    ],
)
@pytest.mark.usefixtures("impatient", "first_end")
def test_a_job_whose_first_host_is_lost_is_left_to_lsf_until_that_says_it_is_over(
    run, commands, ends_as, num_submitted
):
    answers = [{"RECORDS": [job("7", stat)]} for stat in ("RUN", "UNKWN")]
    answers.append({"RECORDS": [ends_as]})
    for number, answer in enumerate(answers):
        (run.path / f"answer-{number}").write_text(json.dumps(answer))
    asked = f"{run.path}/asked-$n"
    count = f"n=0; while [ -e {asked} ]; do n=$((n + 1)); done; : > {asked}"
    choose = f'cat "{run.path}/answer-$([ $n -gt 2 ] && echo 2 || echo $n)"'
    commands.add("bjobs", f"{count}; [ $n = 1 ] && exit 255; {choose}")
    commands.say("brequeue")
    commands.add("bsub", f"cat > /dev/null; echo '{SUBMITTED}'")
    requeuer = LsfRequeuer()
    assert requeuer.decide(lost(0)).sequel == "requeue"
    requeuer.requeue(run)
    assert len(bsub_calls(commands)) == num_submitted
    assert not [call for call in commands.calls if call.startswith("brequeue")]


BHOSTS = "HOST_NAME STATUS JL/U MAX NJOBS\n" + "".join(f"host{one} ok - 4 0\n" for one in "ABC")


def lose_at_launch(run):
    run.claim_attempt()
    run.write_attempt_verdict(lost(1, "launch", host="hostB", try_elsewhere=True))


@pytest.mark.usefixtures("first_end")
def test_a_host_that_is_lost_at_the_launch_is_left_out_of_the_next_request(run, commands):
    lose_at_launch(run)
    commands.say("bhosts", BHOSTS)
    commands.add("bsub", f"cat > {run.path}/sent; echo '{SUBMITTED}'")
    assert "it starts again without hostB, lost at" in LsfRequeuer().requeue(run)
    assert '#BSUB -R "select[hname!=hostB]"\n' in (run.path / "sent").read_text()
    assert run.read_job_id() == "9"


@pytest.mark.parametrize("why", ["no-others", "bsub-refuses"])
@pytest.mark.usefixtures("first_end")
def test_where_there_is_no_elsewhere_the_same_hosts_are_tried_later(
    run, commands, monkeypatch, why
):
    waits = []
    monkeypatch.setattr(requeue, "_wait", lambda _, limit_s: waits.append(limit_s))
    lose_at_launch(run)
    hosts = BHOSTS if why == "bsub-refuses" else BHOSTS.replace("hostC ok", "hostC unavail")
    commands.say("bhosts", hosts)
    commands.say("bsub", err="Bad resource requirement syntax. Job not submitted.\n", code=255)
    commands.say("brequeue")
    assert LsfRequeuer().requeue(run) is None
    assert waits == [15.0]
    assert commands.calls[-1] == "brequeue 7"


@needs_root
@pytest.mark.parametrize("what", ["", "script.sh", "submission.json"])
def test_a_script_that_may_be_somebody_elses_by_now_is_not_submitted(run, commands, what):
    commands.say("brequeue", err=REFUSAL, code=255)
    commands.add("bsub", f"echo '{SUBMITTED}'")
    os.chown(run.path / what, NOBODY, NOBODY)
    with pytest.raises(RequeueRefusedError, match="belongs to nobody, and the job is root's"):
        LsfRequeuer().requeue(run)
    assert bsub_calls(commands) == []
