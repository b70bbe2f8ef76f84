"""The command on a laptop, from which hosts are reached by the given words for ssh."""

import os
import subprocess
import sys

import pytest
from forked_command import run_command

LIMIT_S = 60


@pytest.fixture
def call_laptop(tmp_path, command_process):
    """Call the command as its user does, in the present folder and without a terminal."""

    def call(*arguments, ssh, limit_s=LIMIT_S, beside_others=False, **variables):
        environment = os.environ | {"HPCDIST_SSH": ssh, "HOME": str(tmp_path)} | variables
        for name in ("HPCDIST_RUNS", "XDG_CACHE_HOME"):
            environment.pop(name, None)
        words = [os.fsdecode(argument) for argument in arguments]
        if beside_others:  # the process that others are forked from waits for each
            done = subprocess.run(
                [sys.executable, "-m", "hpcdist", *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        else:
            done = run_command(
                command_process,
                words,
                cwd=os.getcwd(),
                environment=environment,
                limit_s=limit_s,
                new_session=True,
            )
        assert "Traceback" not in done.stderr
        return done

    return call
