"""A program is executed in a rank as `torchrun --no-python` would execute it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TELL = f"""#!{sys.executable}
import json, os, sys

status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({{
    "argv": sys.argv[1:],
    "environment": {{
        name: os.environ.get(name)
        for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                     "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT")
    }},
    "signals": {{name: int(status[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt")}},
    "open": sorted(os.listdir("/proc/self/fd"))[:4],
    "cwd": os.getcwd(),
}}), flush=True)
"""
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


def bit(signum):
    return 1 << (signum - 1)


def test_a_program_finds_what_torchrun_would_give_it(launch, write_program, tmp_path):
    program = write_program(TELL)
    args = ["--lr", "0.1", "", "two words", "--"]
    torchrun = Path(sys.executable).with_name("torchrun")
    options = ["--no-python", "--nproc-per-node", "2", "--master-port", "0", "--log-dir", tmp_path]
    done = subprocess.run(
        [sys.executable, torchrun, *options, "--redirects", "1", program, *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [json.loads(file.read_text()) for file in tmp_path.glob("*/attempt_0/*/stdout.log")]
    expected = sorted(said, key=lambda one: one["environment"]["RANK"])
    launched = launch(program, *args, gpus=2, no_python=True)
    assert launched.verdict().kind == "done", launched.everything_said()
    for rank in range(2):
        # A warning is not its end, and nobody can ask it for the stacks of its threads.
        expected[rank]["signals"]["SigIgn"] |= bit(signal.SIGUSR2) | bit(signal.SIGQUIT)
        assert launched.said(rank) == [expected[rank]]


@pytest.mark.parametrize(
    ("command", "kind", "code", "signal_name", "status"),
    [
        ("exit 0", "done", 0, None, "done"),
        ("exit 3", "exit", 3, None, "failed"),
        ("kill -SEGV $$", "signal", None, "SIGSEGV", "killed"),
        ("exec /not/there 2>/dev/null", "exit", 127, None, "failed"),
    ],
    ids=["done", "exit", "signal", "gone"],
)
def test_the_exit_code_or_the_signal_of_a_program_is_the_ranks(  # noqa: PLR0917
    launch, write_program, command, kind, code, signal_name, status
):
    launched = launch(write_program(f"#!/bin/sh\necho said\n{command}\n"), no_python=True)
    verdict = launched.verdict()
    assert (verdict.kind, verdict.exit_code, verdict.signal) == (kind, code, signal_name)
    assert launched.log(0) == "said\n"
    start, *_, end = launched.events(0)
    assert (start["event"], end["event"], end["status"]) == ("start", "end", status)
    assert (end["exit_code"], end["signal"], end["by"]) == (code, signal_name, "agent")


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
    assert (verdict.kind, verdict.exit_code) == ("exception", 4)
    assert (verdict.exception, verdict.exception_message) == ("OddError", "no: luck")
    assert 'raise OddError("no: luck")' in verdict.traceback
    assert "failed first: OddError: no: luck" in verdict.message
