"""Asking bjobs and bkill of engines that know more or less, and of some that do not answer; and a
brequeue that is refused."""

import re
import time
from pathlib import Path

import pytest

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import CommandFailedError
from hpcdist.runs.run import Run
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
        for kind, text in (("out", out), ("err", err)):
            (self.folder / f"{name}.{kind}").write_text(text)
        said = self.folder / name
        self.add(name, f"cat {said}.out; cat {said}.err >&2; exit {code}")

    @property
    def calls(self):
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def commands(tmp_path, monkeypatch):
    for name in ("bash", "cat"):  # and none of a scheduler that may be installed
        (tmp_path / name).symlink_to(Path("/bin", name))
    monkeypatch.setenv("PATH", str(tmp_path))
    return Commands(tmp_path)


def test_an_engine_is_asked_once(commands):
    commands.say("bjobs", RECORDED)
    assert len(ask_jobs(["22005", "22006[3]", "22006[4]"])) == 5
    (call,) = commands.calls
    assert call.endswith("delimiter='|' 22005 22006")
    assert ask_jobs(["None", "", "0"]) == []  # no ids
    assert len(commands.calls) == 1


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
        ("", UNREACHABLE, 255),
        ("", UNREACHABLE, 0),
        (HEADER, UNREACHABLE, 255),
        ("", "<STAT> in the format string is not a valid field name\n", 255),
        ("", DOWN, 255),
        ("", "batch system daemon not responding ... still trying\n", 255),
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


@pytest.mark.parametrize("code", [0, 254, 255])
@pytest.mark.parametrize(
    ("out", "said", "number"),
    [
        ("", "No unfinished job found\n", 0),
        ("", "No job found\n", 0),
        ("", "Job <123> is not found\n", 0),
        ("", "Job <123[4]> is not found\nJob <9> is not found\n", 0),
        (RECORDED, "Job <123> is not found\n", 5),
    ],
)
def test_jobs_that_lsf_does_not_know_are_no_error(commands, out, said, code, number):
    commands.say("bjobs", out, err=said, code=code)
    assert len(ask_jobs(["22005", "123"])) == number
    assert len(commands.calls) == 1


def test_jobs_that_are_told_after_a_complaint_are_known(commands):
    commands.say("bjobs", RECORDED, err=DOWN)
    assert len(ask_jobs()) == 5


@pytest.mark.parametrize(
    "said",
    [
        "Job <7>: Job has already finished\n",
        "Job <7>: No matching job found\n",
        "Job <7> is not found\n",
        "Job <7>: Operation is in progress\n",
        "Job <7>: User permission denied\n",
    ],
)
def test_jobs_are_killed_in_one_call_and_a_refusal_is_an_error(commands, said):
    commands.say("bkill", "Job <8[2]> is being terminated\n", err=said, code=255)
    if "denied" in said:
        with pytest.raises(CommandFailedError, match="permission denied") as raised:
            bkill(["8[2]", "7", "7"])
        assert "being terminated" not in raised.value.message
    else:
        bkill(["8[2]", "7", "7"])
    bkill([])
    assert commands.calls == ["bkill 7 8[2]"]


@pytest.mark.parametrize("job_id", ["0", "None", "", "7[0]", "-u"])
def test_nothing_that_is_no_id_is_killed(commands, job_id):
    commands.say("bkill")
    with pytest.raises(SchedulerError, match=re.escape(f"{job_id!r} is no id")):
        bkill(["7", job_id])
    assert commands.calls == []


def test_a_requeue_that_is_refused_is_not_asked_for_again(commands, tmp_path, monkeypatch):
    monkeypatch.setenv("LSB_JOBID", "7")
    commands.say("brequeue", err="Job <7>: User permission denied\n", code=255)
    with pytest.raises(RequeueRefusedError, match="User permission denied"):
        lsf.scheduler.requeue(Run(tmp_path))
    commands.say("brequeue", err=DOWN, code=255)
    with pytest.raises(CommandFailedError):  # it is asked for again
        lsf.scheduler.requeue(Run(tmp_path))


@pytest.mark.parametrize(
    ("node", "said", "sequel"),
    [
        pytest.param(0, "killed", "open", id="killed"),
        pytest.param(0, "ended", "requeue", id="agent-of-first-host-lost"),
        pytest.param(0, None, "leave", id="first-host-lost"),
        pytest.param(1, None, "requeue", id="other-host-lost"),
    ],
)
def test_the_first_host_tells_the_others_how_its_agent_ended(
    tmp_path, monkeypatch, node, said, sequel
):
    """By a file that the program there writes when its command has ended."""
    monkeypatch.setattr(lsf, "_END_IS_KNOWN_S", 0.0)
    variables = {"JOB_FIRST_END": tmp_path / "end", "JOB_HOSTS": "hostA 1 hostB 1"}
    for name, value in variables.items():
        monkeypatch.setenv(f"HPCDIST_{name}", str(value))
    if said:
        (tmp_path / "end").write_text(said)
    lost = Verdict(kind="agent_lost", message="lost", time_s=time.time(), node=node)
    assert lsf.scheduler.decide(lost).sequel == sequel
