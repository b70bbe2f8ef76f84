"""One command on every host of an LSF job."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_for

from hpcdist.base import files
from hpcdist.schedulers.hosts import Host, Job, host_script, launch_command, read_hosts
from hpcdist.schedulers.lsf.hosts import exit_code_for_lsf

LIMIT_S = 60

LAUNCHER = """#!/bin/sh
# Starts a command on a host, as rsh does: through another shell, without our environment.
host="$1"; shift
case "$host" in down*) echo "$host is unreachable" >&2; exit 255 ;; esac
cd / && exec env -i PATH=/usr/bin:/bin WHERE="$host" /bin/sh -c "$*"
"""

COMMAND = """
import json, os, signal, sys, time
received = []
for number in (signal.SIGUSR2, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: received.append(number))
place = {"cwd": os.getcwd(), "pid": os.getpid(), "environment": dict(os.environ)}
print(json.dumps(place), flush=True)
task = os.environ["SUBMITIT_LOCAL_GLOBALID"]
while not os.path.exists(f"end-{task}"):
    while received:
        print(json.dumps({"received": received.pop(0)}), flush=True)
    time.sleep(0.01)
sys.exit(int(open(f"end-{task}").read()))
"""


class LsfJob:
    """A job of LSF's as its script has become: the process that starts the command everywhere."""

    def __init__(self, folder, hosts, options=(), **environment):
        self.folder = folder = folder / "with a space"
        folder.mkdir(exist_ok=True)
        launcher = folder / "launch"
        launcher.write_text(LAUNCHER)
        launcher.chmod(0o755)
        self.logs = folder / "logs"
        self.logs.mkdir(exist_ok=True)
        code = "from hpcdist.schedulers.lsf.hosts import main; main()"
        words = ["--logs", str(self.logs), "--job", "7", "--nodes", str(len(hosts.split()) // 2)]
        words += ["--launcher", f"'{launcher}' {{host}} {{command}}", *options]
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words, "--", sys.executable, "-c", COMMAND],
            cwd=folder,
            env=os.environ | {"LSB_MCPU_HOSTS": hosts, "LSB_JOBID": "7"} | environment,
            start_new_session=True,
        )

    def lines(self, task=0):
        """What a task printed so far; a line that is still being written is left for later."""
        path = self.logs / f"7_{task}_log.out"
        text = path.read_text() if path.exists() else ""
        whole = text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]
        return [json.loads(line) for line in whole if line.startswith("{")]

    def note(self):
        """The one that the job writes, when it is there."""
        path = self.logs / "7.notes"
        wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
        return json.loads(path.read_text())

    def started(self, task=0):
        return wait_for(lambda: self.lines(task))[0]

    def end(self, *codes):
        for task, code in enumerate(codes):
            self.end_task(task, code)
        return self.process.wait(LIMIT_S)

    def end_task(self, task, code):
        files.write_whole(self.folder / f"end-{task}", str(code))


@pytest.fixture
def start(tmp_path):
    jobs = []

    def start_job(hosts="hostA 8 hostB 8 ", **options):
        jobs.append(LsfJob(tmp_path, hosts, **options))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.process.kill()
        job.process.wait()
        for task in range(4):
            for line in job.lines(task):
                if "pid" in line and Path(f"/proc/{line['pid']}").exists():
                    os.kill(line["pid"], signal.SIGKILL)


def test_hosts_are_counted_once_each_and_in_order():
    assert read_hosts("hostB 2 hostA 4 ") == [
        Host(name="hostB", slots=2),
        Host(name="hostA", slots=4),
    ]
    assert read_hosts("hostA 1 hostB 1 hostA 2") == [
        Host(name="hostA", slots=3),
        Host(name="hostB", slots=1),
    ]
    assert read_hosts("") == []


def state_of(pid):
    """T of a process that is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_suspension_stops_the_first_hosts_command_until_it_is_resumed(start):
    job = start("hostA 8 ")
    pid = job.started(0)["pid"]
    os.killpg(job.process.pid, signal.SIGTSTP)
    wait_for(lambda: state_of(pid) == "T")
    os.killpg(job.process.pid, signal.SIGCONT)
    wait_for(lambda: state_of(pid) != "T")
    assert job.end(0) == 0


def test_what_is_killed_takes_the_first_hosts_command_along(start):
    job = start("hostA 8 ")
    pid = job.started(0)["pid"]
    job.process.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


def test_a_start_counts_those_before_it(start):
    assert start("hostA 1 ").started(0)["environment"]["HPCDIST_JOB_LIFE"] == "0"
    job = start("hostA 1 ")
    lives = [line["environment"]["HPCDIST_JOB_LIFE"] for line in wait_for(lambda: job.lines()[1:])]
    assert lives == ["1"]


@pytest.mark.parametrize(
    ("code", "requeued", "told"),
    [
        (130, "", 130),
        (130, "99 100", 130),
        (130, "99 130", 1),
        (1, "all", 1),  # nothing helps
        (75, "all ~3", 3),
        (75, "all ~75", 75),
        (20, "30 EXCLUDE(20 1)", 2),
        (0, "all", 0),
    ],
)
def test_no_exit_code_asks_for_a_requeue(code, requeued, told):
    assert exit_code_for_lsf(code, requeued) == told


def test_a_launcher_is_given_plain_words_and_quotes_where_there_are_none():
    command = ["/bin/sh", "/runs/a/7_host.sh", "1"]
    words = launch_command("blaunch -z {host} {command}", command, host="hostB")
    assert words == ["blaunch", "-z", "hostB", *command]
    inside = launch_command("ssh {host} 'exec {command}'", command, host="hostB")
    assert inside == ["ssh", "hostB", "exec /bin/sh /runs/a/7_host.sh 1"]
    spaced = ["/bin/sh", "/my runs/7_host.sh"]
    assert launch_command("rsh {host} {command}", spaced, host="b")[2:] == [
        "/bin/sh",
        "'/my runs/7_host.sh'",
    ]


def test_a_host_script_is_plain_sh():
    text = host_script(
        {"A": "b c", "BASH_FUNC_module%%": "() { :; }"},
        "/a b",
        ["x", "y z"],
        Job("LSF", [], re.compile("LSB_.*")),
        logs="/l/7",
    )
    assert "BASH_FUNC" not in text
    assert text.splitlines()[0] == "cd '/a b' || exit 1"
    assert text.endswith("exec x 'y z'\n")
    subprocess.run(["shellcheck", "--shell=sh", "-"], input=text, text=True, check=True)
