"""The command on a laptop, from which hosts are reached by the given words for ssh."""

import os

import pytest
from harness import run_command
from login_node import LoginNode, missing_programs

LIMIT_S = 60


@pytest.fixture
def call_laptop(tmp_path, command_process):
    """Call the command as its user does, in the present folder and without a terminal."""

    def call(*arguments, ssh, limit_s=LIMIT_S, **variables):
        environment = os.environ | {"HPCDIST_SSH": ssh, "HOME": str(tmp_path)} | variables
        for name in ("HPCDIST_RUNS", "XDG_CACHE_HOME"):
            environment.pop(name, None)
        done = run_command(
            command_process,
            list(map(os.fsdecode, arguments)),
            cwd=os.getcwd(),
            environment=environment,
            limit_s=limit_s,
        )
        assert "Traceback" not in done.stderr
        return done

    return call


@pytest.fixture(scope="module")
def login_node():
    if lacking := missing_programs():
        (pytest.fail if os.environ.get("HPCDIST_REQUIRE_ALL") else pytest.skip)(lacking)
    node = LoginNode()
    node.start()
    yield node
    node.close()


@pytest.fixture
def login(login_node):
    """A login node with hpcdist."""
    login_node.install()
    login_node.profile("")
    return login_node
