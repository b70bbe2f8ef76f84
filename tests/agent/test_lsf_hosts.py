"""One command on every host of an LSF job."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_for

from hpcdist.base import files
from hpcdist.schedulers.hosts import Host, Job, host_script, launch_command, read_hosts

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
        code = "from hpcdist.schedulers.hosts import main; main()"
        words = [
            "--scheduler",
            "lsf",
            "--logs",
            str(self.logs),
            "--job",
            "7",
            "--nodes",
            str(len(hosts.split()) // 2),
        ]
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
    assert read_hosts("") == []


def test_every_host_gets_directory_and_environment(start):
    value = 'it\'s "quoted" $HOME `date`\nand of two lines'
    job = start(VALUE=value, HF_TOKEN="hf_1234567890abcdef", CUDA_VISIBLE_DEVICES="3")
    here, there = job.started(0), job.started(1)
    assert here["cwd"] == there["cwd"] == str(job.folder)
    assert there["environment"]["VALUE"] == here["environment"]["VALUE"] == value
    assert there["environment"]["WHERE"] == "hostB"  # it came through the launcher
    assert "WHERE" not in here["environment"]
    assert [one["environment"]["SUBMITIT_LOCAL_GLOBALID"] for one in (here, there)] == ["0", "1"]
    # Of this host alone, and what may be nobody else's, nothing is written down.
    assert "CUDA_VISIBLE_DEVICES" not in there["environment"]
    script = job.logs / "7_host.sh"
    assert "hf_1234567890abcdef" not in script.read_text()
    assert stat.S_IMODE(script.stat().st_mode) == 0o600
    assert job.end(0, 0) == 0


def test_signals_reach_the_first_host_once_each(start):
    job = start()
    job.started(0)
    for number in (signal.SIGUSR2, signal.SIGINT, signal.SIGTERM):
        os.killpg(job.process.pid, number)  # as LSF does
        wait_for(lambda number=number: {"received": number} in job.lines(0))
    received = [line["received"] for line in job.lines(0)[1:]]
    assert received == [signal.SIGUSR2, signal.SIGINT, signal.SIGTERM]
    job.started(1)
    assert job.end(0, 0) == 0


def test_what_is_killed_takes_the_first_hosts_command_along(start):
    job = start("hostA 8 ")
    pid = job.started(0)["pid"]
    job.process.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


def test_a_host_that_cannot_be_reached_is_told(start):
    job = start("hostA 8 downB 8 ")
    job.started(0)
    note = job.note()
    assert note == {
        "node": 1,
        "host": "downB",
        "said": f"'{job.folder / 'launch'}' ended with exit code 255: downB is unreachable",
        "is_host_lost": True,
    }
    assert "downB is unreachable" in (job.logs / "7_1_log.out").read_text()
    assert job.end(1) == 1


def test_a_start_counts_those_before_it(start):
    assert start("hostA 1 ").started(0)["environment"]["HPCDIST_JOB_LIFE"] == "0"
    job = start("hostA 1 ")
    lives = [line["environment"]["HPCDIST_JOB_LIFE"] for line in wait_for(lambda: job.lines()[1:])]
    assert lives == ["1"]


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
        Job([], re.compile("LSB_.*")),
        logs="/l/7",
    )
    assert "BASH_FUNC" not in text
    assert text.splitlines()[0] == "cd '/a b' || exit 1"
    assert text.endswith("exec x 'y z'\n")
    subprocess.run(["shellcheck", "--shell=sh", "-"], input=text, text=True, check=True)
