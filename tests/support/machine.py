"""A machine with a user's shell, on which the commands of a scheduler may be."""

import os
import subprocess
import sys

import pytest
from harness import run_command
from waiting import wait_for

LIMIT_S = 90.0


class Machine:
    """This machine, as tests see a cluster: without a queue, a job has ended once its run has."""

    def __init__(self, command_server):
        self.command_server = command_server

    @property
    def environment(self):
        return {name: value for name, value in os.environ.items() if name != "HPCDIST_RUNS"}

    def command(self, *arguments):
        """What to start from here for a command there."""
        return list(map(str, arguments))

    def run(self, *arguments, timeout=LIMIT_S, check=True, node=None, cwd=None, **options):
        """A command, to its end, as by subprocess.run; fails the test where the command fails,
        unless told otherwise. hpcdist itself is forked, unless something is typed into it."""
        words = self.command(*arguments, **({"node": node} if node else {}))
        options = {"env": self.environment} | options
        name = ["hpcdist"] if words[0] == "hpcdist" else [sys.executable, "-m", "hpcdist"]
        if self.command_server and words[: len(name)] == name and "input" not in options:
            place = {"cwd": cwd or os.getcwd(), "environment": options["env"]}
            done = run_command(self.command_server, words[len(name) :], **place, limit_s=timeout)
        else:
            typed = {} if "input" in options else {"stdin": subprocess.DEVNULL}
            options |= typed | {"capture_output": True, "text": True}
            done = subprocess.run(words, check=False, cwd=cwd, timeout=timeout, **options)
        if check and done.returncode:
            pytest.fail(f"{arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def start_command(self, *arguments, **options):
        """A command that goes on."""
        defaults = {"env": self.environment, "stdin": subprocess.DEVNULL, "text": True}
        return subprocess.Popen(self.command(*arguments), **defaults | options)

    def describe(self):
        """For the message of a failed test."""
        return ""

    def wait_for(self, condition, limit_s=LIMIT_S):
        """What it returns, once that is true; fails the test after the limit."""
        return wait_for(condition, limit_s, told=self.describe)

    def wait_for_end(self, job_id, limit_s=LIMIT_S):
        """Of a job, which a machine without a queue does not have."""
