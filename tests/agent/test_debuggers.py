"""A debugger in a rank of a living run, as VS Code talks to one."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpcdist.agent.requests import WantDebugger, WantStacks
from hpcdist.cli.main import main
from hpcdist.monitor.requests import ask

LOOP = """
import os, pathlib, time
import torch.distributed as dist
dist.init_process_group("gloo")
waiting = 7
def wait_for_file():
    while not pathlib.Path(os.environ["HPCDIST_RUN_DIR"], "go").exists():
        time.sleep(0.05)
print("here", flush=True)
if os.environ["RANK"] == "0":
    wait_for_file()
dist.barrier()
"""


class Client:
    """A client of the Debug Adapter Protocol."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._file = self._socket.makefile("rwb")
        self._sent = 0

    def send(self, command, **arguments):
        self._sent += 1
        message = {"seq": self._sent, "type": "request", "command": command, "arguments": arguments}
        text = json.dumps(message).encode()
        self._file.write(b"Content-Length: %d\r\n\r\n" % len(text) + text)
        self._file.flush()

    def wait(self, kind, name):
        """The first such message from here on."""
        while True:
            size = 0
            while line := self._file.readline().strip():
                name_of_field, _, value = line.partition(b": ")
                size = int(value) if name_of_field == b"Content-Length" else size
            message = json.loads(self._file.read(size))
            if message["type"] == kind and message.get("command", message.get("event")) == name:
                return message.get("body") or {}

    def close(self):
        self._file.close()
        self._socket.close()


@pytest.fixture
def launched(launch, write_script):
    launched = launch(write_script(LOOP, "loop.py"), gpus=2, hang_timeout_s=10)
    launched.wait(lambda: "here" in launched.log(0))
    return launched


def test_a_rank_waits_for_a_debugger_which_sees_its_program_and_lets_it_go_on(launched, capsys):
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, launched.run, WantDebugger(limit_s=60, ranks=[0], wait_s=2))
        while not asked.done():  # one question does not take the place of another
            stacks = ask(launched.run, WantStacks(limit_s=30, ranks=[0]))
            assert stacks.reports[0].ranks[0].collectives is not None
    assert asked.result().reports[0].ranks[0].debugger.port is not None
    time.sleep(3)  # nobody comes
    assert "debugging.py" not in str(ask(launched.run, WantStacks(limit_s=30, ranks=[0])))
    assert main(["attach", str(launched.run.path), "--debugpy"]) == 0
    (configuration,) = json.loads(capsys.readouterr().out)["configurations"]
    assert configuration["connect"]["host"] == "127.0.0.1"
    time.sleep(11)  # longer than a rank may be silent
    client = Client(configuration["connect"]["port"])
    client.send("initialize", adapterID="test")
    client.send("attach", **{key: configuration[key] for key in ("connect", "justMyCode")})
    client.wait("event", "initialized")
    client.send("configurationDone")
    thread = client.wait("event", "stopped")["threadId"]
    client.send("stackTrace", threadId=thread)
    frames = client.wait("response", "stackTrace")["stackFrames"]
    assert "wait_for_file" in [frame["name"] for frame in frames]
    assert not launched.run.verdict_file.exists()
    client.send("disconnect", terminateDebuggee=False)
    client.close()
    (launched.run.path / "go").touch()
    assert launched.verdict().state == "done"
