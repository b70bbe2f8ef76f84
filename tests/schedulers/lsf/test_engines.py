"""Asking bjobs and bkill of engines that know more or less, and of some that do not answer; and a
brequeue that is refused."""

import re
import shlex
from pathlib import Path

import pytest

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import CommandFailedError
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.lsf import jobs, lsf
from hpcdist.schedulers.lsf.jobs import ask_jobs, bkill
from hpcdist.schedulers.requeue import RequeueRefusedError

RECORDED = (Path(__file__).parent / "recorded" / "bjobs_fields.txt").read_text()
HEADER = RECORDED.splitlines()[0]
WITH_LESS = r"""
for field in exit_code pend_reason; do
    [[ "$*" == *$field* ]] || continue
    echo "<${field^^}> in the format string is not a valid field name" >&2; exit 255
done
printf '%s|' JOBID STAT EXEC_HOST START_TIME FINISH_TIME RUN_TIME EXIT_REASON
printf '%s\n' 'MAX_MEM|PEND_TIME|JOB_NAME'
printf '%s\n' '7|EXIT|hostA|Feb  2 00:45|-|60 second(s)|-|-|-|a' '8|PEND|-|-|-|-|-|-|-|b'
"""
DOWN = "LSF is down. Please wait ...\n"
UNREACHABLE = "System call failed: Network is unreachable\n"


class Commands:
    """Small commands on PATH, each of which writes down how it was called."""

    def __init__(self, folder):
        self.folder = folder

    def add(self, name, script):
        """A command; `script` is bash, and sees its arguments."""
        path = self.folder / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >> {self.folder}/calls\n{script}\n')
        path.chmod(0o755)

    def say(self, name, out="", *, err="", code=0):
        """A command that always says the same."""
        said = f"printf %s {shlex.quote(out)}; printf %s {shlex.quote(err)} >&2"
        self.add(name, f"{said}; exit {code}")

    @property
    def calls(self):
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def commands(tmp_path, monkeypatch):
    (tmp_path / "bash").symlink_to("/bin/bash")  # and no scheduler that may be installed
    monkeypatch.setenv("PATH", str(tmp_path))
    return Commands(tmp_path)


def test_an_engine_is_asked_once_for_the_states_of_many_runs(commands, tmp_path):
    listed = [("JOBID", "STAT", ""), ("6[3]", "RUN", "sweep-1[3]"), ("7", "DONE", "one")]
    rows = [dict(zip(("jobid", "stat", "job_name"), words, strict=True)) for words in listed]
    lines = ["|".join(row.get(field, "-") for field in jobs._FIELDS) for row in rows]
    commands.say("bjobs", "\n".join(lines))
    assert ask_jobs(["None", "", "0"]) == []  # no ids
    runs = []
    for job_id, name in (("6[3]", "sweep-1"), ("7", "one"), ("7", "another")):
        runs.append(Run.create(tmp_path, name))
        runs[-1].write_submission(Submission(scheduler="lsf", job_id=job_id, job_name=name))
    states = [condition.state for condition in lsf.scheduler.conditions(runs).values()]
    assert states == ["running", "done", "unknown"]
    (call,) = commands.calls
    assert call.endswith("delimiter='|' 6 7")


def test_the_fields_that_an_engine_names_as_unknown_are_left_out_from_then_on(commands):
    commands.add("bjobs", WITH_LESS)
    jobs = ask_jobs()
    assert [(job.word, job.exit_code) for job in jobs] == [("EXIT", None), ("PEND", None)]
    assert jobs[0].elapsed_s == 60
    assert jobs[1].reason == "LSF does not say why"
    assert len(commands.calls) == 3
    ask_jobs(["764213236", "764220167"])
    assert commands.calls[3].endswith("' 764213236 764220167")


@pytest.mark.parametrize(
    ("out", "err", "code"),
    [
        ("", UNREACHABLE, 0),
        (HEADER, UNREACHABLE, 255),
        ("", "<STAT> in the format string is not a valid field name\n", 255),
        ("what?\n" * 100, "", 1),
        ("", "", 255),
    ],
)
def test_a_failure_does_not_mean_that_there_are_no_jobs(commands, out, err, code):
    commands.say("bjobs", out, err=err, code=code)
    with pytest.raises(CommandFailedError, match=r"bjobs -a -o") as raised:
        ask_jobs(["7"])
    assert err.strip() in raised.value.message
    assert raised.value.message.count("what?") < 10
    assert len(commands.calls) == 1


@pytest.mark.parametrize(("name", "call"), [("bjobs", ask_jobs), ("bkill", bkill)])
def test_a_command_that_does_not_answer_is_not_waited_for(commands, monkeypatch, name, call):
    monkeypatch.setattr(jobs, "TIMEOUT_S", 0.2)
    commands.add(name, "read <> <(:)")
    with pytest.raises(SchedulerError, match=f"{name} did not answer within 0.2 s"):
        call(["7"])


@pytest.mark.parametrize(
    ("out", "said", "number"),
    [
        ("", "No unfinished job found\n", 0),
        ("", "Job <123[4]> is not found\nJob <9> is not found\n", 0),
        (RECORDED, "Job <123> is not found\n", 5),
        (RECORDED, DOWN, 5),
    ],
)
def test_jobs_that_lsf_does_not_know_are_no_error(commands, out, said, number):
    commands.say("bjobs", out, err=said, code=0 if said == DOWN else 255)
    assert len(ask_jobs(["22005", "123"])) == number
    assert len(commands.calls) == 1


@pytest.mark.parametrize("said", ["Job has already finished", "Job is not found", "User is denied"])
def test_jobs_are_killed_in_one_call_and_a_refusal_is_an_error(commands, said):
    commands.say("bkill", "Job <8[2]> is being terminated\n", err=f"Job <7>: {said}\n", code=255)
    if "denied" in said:
        with pytest.raises(CommandFailedError, match="is denied") as raised:
            bkill(["8[2]", "7", "7"])
        assert "being terminated" not in raised.value.message
    else:
        bkill(["8[2]", "7", "7"])
    bkill([])
    assert commands.calls == ["bkill 7 8[2]"]


def test_nothing_that_is_no_id_is_killed(commands):
    for job_id in ("0", "", "7[0]", "-u"):
        with pytest.raises(SchedulerError, match=re.escape(f"{job_id!r} is no id")):
            bkill(["7", job_id])


def test_a_requeue_that_is_refused_is_not_asked_for_again(commands, tmp_path, monkeypatch):
    monkeypatch.setenv("LSB_JOBID", "7")
    commands.say("brequeue", err="Job <7>: User permission denied\n", code=255)
    with pytest.raises(RequeueRefusedError, match="User permission denied"):
        lsf.scheduler.requeue(Run(tmp_path))
    commands.say("brequeue", err=DOWN, code=255)
    with pytest.raises(CommandFailedError):  # it is asked for again
        lsf.scheduler.requeue(Run(tmp_path))


@pytest.mark.parametrize(
    ("said", "sequel"), [("killed", "open"), ("ended", "requeue"), (None, "leave")]
)
def test_the_first_host_tells_the_others_how_its_agent_ended(tmp_path, monkeypatch, said, sequel):
    """A brequeue of a job whose first host is lost would end it for good."""
    monkeypatch.setattr(lsf, "_END_IS_KNOWN_S", 0.0)
    monkeypatch.setenv("HPCDIST_JOB_FIRST_END", str(tmp_path / "end"))
    if said:
        (tmp_path / "end").write_text(said)
    lost = Verdict(kind="agent_lost", message="lost", node=0)
    assert lsf.scheduler.decide(lost).sequel == sequel
