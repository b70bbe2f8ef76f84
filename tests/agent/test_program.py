"""A program is executed in a rank as `torchrun --no-python` would execute it."""

import os
import signal
import sys
from pathlib import Path

import pytest

RECORDS = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record

class OddError(ValueError):
    pass

@record
def main():
    raise OddError("no: luck")

try:
    main()
except OddError:
    sys.exit(4)
"""


@pytest.fixture
def write_program(write_script):
    def write(text, name="program"):
        path = write_script(text, name)
        path.chmod(0o755)
        return path

    return write


@pytest.mark.parametrize(
    ("command", "kind", "code", "signal_name", "status"),
    [
        ("exit 0", "done", 0, None, "done"),
        ("exit 3", "exit", 3, None, "failed"),
        ("kill -SEGV $$", "signal", None, "SIGSEGV", "killed"),
    ],
    ids=["done", "exit", "signal"],
)
def test_the_exit_code_or_the_signal_of_a_program_is_the_ranks(  # noqa: PLR0917
    launch, write_program, command, kind, code, signal_name, status
):
    launched = launch(write_program(f"#!/bin/sh\necho said\n{command}\n"), no_python=True)
    verdict = launched.verdict()
    how = verdict.first or verdict
    assert (verdict.kind, how.exit_code, how.signal) == (kind, code, signal_name)
    assert launched.log(0) == "said\n"
    assert launched.run.log_file(0).stat().st_mode & 0o777 == 0o600
    start, *_, end = launched.events(0)
    assert (start["event"], end["event"], end["status"]) == ("start", "end", status)
    assert (end.get("exit_code"), end.get("signal"), end["by"]) == (code, signal_name, "agent")


def test_a_program_that_cannot_be_executed_on_the_node_fails_the_rank(launch, write_program):
    program = write_program("#!/bin/sh\n")
    launched = launch(program, no_python=True, nodes=2, agents=[0])
    launched.agent_pid(0)
    program.unlink()
    launched.start_agent(1)
    assert f"{program} cannot be executed: No such file" in launched.verdict().message


def test_a_program_that_prints_is_not_hung_and_one_that_does_not_is_ended(launch, write_program):
    program = write_program(
        "#!/bin/bash\nfor i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done\nexec sleep 1000\n"
    )
    launched = launch(program, no_python=True, hang_timeout_s=2)
    assert launched.verdict().kind == "hang"
    assert launched.log(0).split() == ["1", "2", "3", "4", "5", "6"]


def test_a_program_ends_with_its_agent(launch, write_program):
    program = write_program("#!/bin/sh\necho begun\nexec sleep 1000\n")
    launched = launch(program, no_python=True)
    launched.wait(lambda: "begun" in launched.log(0))
    pid = launched.pid(0)
    os.kill(launched.agent_pid(0), signal.SIGKILL)
    launched.wait(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize("no_python", [False, True], ids=["script", "program"])
def test_what_record_wrote_before_sys_exit_is_in_the_verdict(launch, write_program, no_python):
    text = f"#!{sys.executable}\n{RECORDS}"
    verdict = launch(write_program(text), no_python=no_python).verdict()
    assert (verdict.kind, verdict.first.exit_code) == ("exception", 4)
    assert verdict.first.report.exception == "OddError"
    assert 'raise OddError("no: luck")' in verdict.first.report.traceback
    assert "failed first: OddError: no: luck" in verdict.message
