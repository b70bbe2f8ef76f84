"""Azure's nodes: agents that are started with its variables, each on a mount of its own. What a
node writes there comes to the storage; what others write there it never sees, as on Azure's mounts.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256

import pytest
from login_node import free_port
from waiting import wait_for

from hpcdist.schedulers.azure.node import prepare_run, scan

LAST_STEP = 40
SCRIPT = """
import json, os, sys, time
from hashlib import sha256
from pathlib import Path
from hpcdist import record
run = Path(os.environ["HPCDIST_RUN_DIR"])
saved = run / "checkpoints" / f"state-{os.environ['RANK']}.json"
state = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "value": "seed"}
print("goes on from step", state["step"], flush=True)
record.start(first_step=state["step"])
while state["step"] < 40:
    while state["step"] == 20 and not os.path.exists(os.environ["GATE"]):
        time.sleep(0.02)
        if record.should_stop():
            sys.exit(record.EXIT_STOPPED)
    value = sha256(f"{state['value']} {os.environ['RANK']}".encode()).hexdigest()
    state = {"step": state["step"] + 1, "value": value}
    record.step(samples=1)
    if state["step"] % 10 == 0:
        saved.with_name(".aside").write_text(json.dumps(state))
        saved.with_name(".aside").rename(saved)
"""


def parameters(rank):
    value = "seed"
    for _ in range(LAST_STEP):
        value = sha256(f"{value} {rank}".encode()).hexdigest()
    return value


class AzureJob:
    """One job: the code that was uploaded, its storage, and the nodes of its present life."""

    def __init__(self, folder, hpcdist, unpack):
        self.folder, self.port = folder, free_port()
        self.storage, self.code, self.gate = (folder / n for n in ("storage", "code", "gate"))
        self.nodes, self._life = {}, 0
        self.storage.mkdir()
        (hpcdist.folder / "train.py").write_text(SCRIPT)
        keys = ("--set", "launch.device=cpu", "--set", "record.window_s=0.01")
        self.run = hpcdist.submit("--nodes", 2, "--gpus", 1, *keys)
        unpack(self.code)

    def start_node(self, node):
        """Start a node's process, with exactly the variables that Azure gives it."""
        place = self.folder / f"life-{self._life}-node-{node}"
        shutil.copytree(self.storage, place / "mount")
        shutil.copytree(self.code, place / "code")
        (place / "disk").mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "HPCDIST_TEST_MARK")}
        environment = {
            "PYTHONPATH": str(place / "code" / "lib"),
            "HOME": str(place / "home"),
            "TMPDIR": str(place / "disk"),
            "GATE": str(self.gate),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "WORLD_SIZE": "2",
            "NODE_RANK": str(node),
            "RANK": str(node),
            "LOCAL_RANK": "0",
        }
        words = [sys.executable, "-u", "-m", "hpcdist.schedulers.azure.node", place / "mount"]
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                words, cwd=place / "code", env=kept | environment, stdout=log, stderr=log
            )
        self.nodes[node] = (process, place / "mount")
        return process

    def lose_node(self, node):
        """Take a node away at once, as Azure takes a low-priority node."""
        process, *_ = self.nodes.pop(node)
        process.kill()
        process.wait()

    def published(self):
        """The contents of the storage, with what nodes of this life have written, by path."""
        for _, mount in self.nodes.values():
            for path, (_, time_ns, _) in scan(mount).items():
                stored = self.storage / path
                if not stored.exists() or time_ns > stored.stat().st_mtime_ns:
                    stored.parent.mkdir(parents=True, exist_ok=True)
                    with suppress(FileNotFoundError):
                        shutil.copy2(mount / path, stored)
        return {path: (self.storage / path).read_bytes() for path in scan(self.storage)}

    def state(self, rank):
        content = self.published().get(f"checkpoints/state-{rank}.json")
        return json.loads(content) if content else {"step": 0}

    def log(self, rank, attempt):
        return self.published().get(f"logs/rank-0000{rank}.attempt-{attempt}.log", b"")

    def end(self):
        """Wait for all nodes of this life; their exit codes by node, and what was published."""
        codes = {node: process.wait(60) for node, (process, *_) in self.nodes.items()}
        content = self.published()
        self.nodes.clear()
        self._life += 1
        return codes, content


@pytest.fixture
def azure_job(hpcdist, unpack, tmp_path):
    """A job of two nodes, none of which has begun."""
    job = AzureJob(tmp_path, hpcdist, unpack)
    yield job
    for node in [*job.nodes]:
        job.lose_node(node)


def test_a_job_that_loses_a_node_and_then_all_goes_on_exactly_from_what_was_published(
    azure_job, azure, hpcdist
):
    job, run = azure_job, azure_job.run
    for node in (1, 0):
        job.start_node(node)
    wait_for(lambda: job.state(0)["step"] == job.state(1)["step"] == 20)
    job.lose_node(1)
    codes, content = job.end()
    assert codes[0] != 0
    assert b"goes on from step 0" in content["logs/rank-00000.log"]
    assert "verdict.json" not in content
    assert json.loads(content["attempts/00000/verdict.json"])["kind"] == "agent_lost"
    assert not list(job.folder.rglob("nodes.jsonl"))  # its nodes come and go: no ledger

    processes = [job.start_node(node) for node in (0, 1)]
    for rank in (0, 1):
        wait_for(lambda rank=rank: b"goes on from step 20" in job.log(rank, 1))
    for process in processes:
        process.send_signal(signal.SIGTERM)
    codes, content = job.end()
    ended = json.loads(content["attempts/00001/verdict.json"])
    assert (ended["kind"], ended["state"]) == ("preempted", "preempted")
    assert "verdict.json" not in content  # Azure alone knows whether the job comes back
    assert codes[0] == ended["exit_code_of_run"]

    job.gate.touch()
    for node in (0, 1):
        job.start_node(node)
    codes, content = job.end()
    assert codes == {0: 0, 1: 0}
    assert json.loads(content["verdict.json"])["state"] == "done"
    assert [job.state(rank)["value"] for rank in (0, 1)] == [parameters(0), parameters(1)]
    for rank in (0, 1):
        assert b"goes on from step 20" in job.log(rank, 2)
        assert f"events/rank-0000{rank}.attempt-2.jsonl" in content
    assert json.loads(content["attempts/00002/begin.json"])["life"] == 2
    assert not {"spec.json", "launch/meeting.json"} & content.keys()

    # All of it is brought home.
    spec = run.spec_file.read_bytes()
    for path, one in content.items():
        azure.put_output(run.id, path, one)
    azure.set_state(run.id, "Completed")
    (found,) = json.loads(hpcdist("summary", run.id, "--json").stdout)
    assert (found["state"], found["cluster"], len(found["attempts"])) == ("done", "azure-gpu", 3)
    assert run.read_verdict().kind == "done"
    assert run.spec_file.read_bytes() == spec
    assert "goes on from step 20" in hpcdist("logs", run.id).stdout


def test_a_start_begins_with_the_newest_checkpoints_and_without_logs(tmp_path):
    code, output = tmp_path / "code", tmp_path / "output"
    (code / "run").mkdir(parents=True)
    (code / "run" / "spec.json").write_text('{"id": "train-1"}')
    names = [f"checkpoints/step-0000000{step}.pt" for step in (1, 2, 3)]
    for name in (*names, "logs/rank-00000.log", "launch/meeting.json", "own/state", "own/.aside"):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text(name)
    run, _ = prepare_run(code, output)
    found = [path for path in (*names, "own/state") if (run.path / path).exists()]
    assert found == [*names[1:], "own/state"]
    gone = ("logs/rank-00000.log", "launch/meeting.json", "own/.aside")
    assert not [name for name in gone if (run.path / name).exists()]
