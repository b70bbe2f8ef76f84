"""Azure's nodes: agents that are started with its variables, on a mount that behaves badly."""

import json
import signal
from hashlib import sha256

import pytest
from azure_nodes import AzureJob, Network, Storage
from waiting import wait_for

from hpcdist.cluster.load import LoadedProfile
from hpcdist.cluster.profile import AzureOptions, ClusterProfile
from hpcdist.job.load import LoadedJob
from hpcdist.job.spec import Launch, Record, Resources, ScriptJob
from hpcdist.runs.run import Run
from hpcdist.schedulers import load_scheduler
from hpcdist.schedulers.azure.node import prepare_run, scan
from hpcdist.submission.plan import PlannedRun
from hpcdist.submission.submit import write_spec
from hpcdist.submission.workspace import Workspace

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
    value = sha256(f"{state['value']} {os.environ['RANK']}".encode()).hexdigest()
    state = {"step": state["step"] + 1, "value": value}
    record.step(samples=1)
    if state["step"] % 10 == 0:
        saved.with_name(".aside").write_text(json.dumps(state))
        saved.with_name(".aside").rename(saved)
    while state["step"] == 20 and not os.path.exists(os.environ["GATE"]):
        time.sleep(0.02)
        if record.should_stop():
            sys.exit(record.EXIT_STOPPED)
"""


def parameters(rank, steps=LAST_STEP):
    value = "seed"
    for _ in range(steps):
        value = sha256(f"{value} {rank}".encode()).hexdigest()
    return value


@pytest.fixture(scope="module")
def network(lasting_process):
    try:
        network = Network()
    except OSError as error:
        pytest.skip(f"this machine does not allow network namespaces: {error}")
    lasting_process(network.pid)
    yield network
    network.close()


@pytest.fixture
def azure_job(tmp_path, network):
    """Make a job of a script, on two nodes."""
    opened = []

    def make(*, script=SCRIPT, nodes=2, **launch):
        resources = Resources(nodes=nodes, gpus=1)
        run = Run.create(tmp_path / "runs", "train")
        job = ScriptJob(
            name="train",
            script=f"{run.path.parent}/x/code/train.py",
            resources=resources,
            launch=Launch(device="cpu", **launch),
            record=Record(window_s=0.01),
        )
        azure = AzureOptions(
            subscription="12345678-1234-1234-1234-123456789abc",
            resource_group="g",
            workspace="w",
            compute="c",
            environment="azureml:e:1",
        )
        profile = LoadedProfile(
            name="azure-cpu",
            profile=ClusterProfile(scheduler="azure", azure=azure, price_per_hour=2.0),
            origins={},
        )
        (run.path.parent / "x" / "code").mkdir(parents=True, exist_ok=True)
        (run.path.parent / "x" / "code" / "train.py").write_text(script)
        scheduler = load_scheduler("azure")
        planned = PlannedRun(
            loaded=LoadedJob(job=job, source="train.py"),
            scheduler=scheduler,
            cluster=profile,
            plan=scheduler.plan(job, profile.profile),
            workspace=Workspace(submit_dir="/home/ann"),
        )
        write_spec(run, planned)
        spec = json.loads(run.spec_file.read_text())
        folder = str(run.path.parent / "x" / "code")
        spec["snapshot"] = {"folder": folder, "source": spec["cwd"]}
        run.spec_file.write_text(json.dumps(spec))
        storage = Storage(tmp_path)
        opened.append(storage)
        made = AzureJob(tmp_path, network, storage, run, script=script)
        opened.insert(0, made)
        return made, run

    yield make
    for one in opened:
        one.close()


def published(job):
    folder = job.storage.folder
    return {path: (folder / path).read_bytes() for path in scan(folder)}


def state_of(job, rank):
    content = published(job).get(f"checkpoints/state-{rank}.json")
    return json.loads(content) if content else {"step": 0}


def test_a_job_whose_node_was_taken_away_goes_on_exactly_from_what_was_published(
    azure_job, tmp_path
):
    job, _ = azure_job()
    gate = tmp_path / "gate"
    job.start_node(1, GATE=str(gate))  # it waits for the first
    wait_for(lambda: list((job.nodes[1][2] / "disk").glob("*/*/spec.json")))
    job.start_node(0, GATE=str(gate))
    wait_for(lambda: state_of(job, 0)["step"] == state_of(job, 1)["step"] == 20)
    job.lose_node(1)
    codes = job.end()
    assert codes[0] != 0
    assert b"goes on from step 0" in published(job)["logs/rank-00000.log"]
    content = published(job)
    assert "verdict.json" not in content
    assert json.loads(content["attempts/00000/verdict.json"])["kind"] == "agent_lost"

    gate.touch()
    for node in (0, 1):
        job.start_node(node, GATE=str(gate))
    assert job.end() == {0: 0, 1: 0}
    content = published(job)
    assert json.loads(content["verdict.json"])["state"] == "done"
    assert [state_of(job, rank)["value"] for rank in (0, 1)] == [parameters(0), parameters(1)]
    for rank in (0, 1):
        assert b"goes on from step 20" in content[f"logs/rank-0000{rank}.attempt-1.log"]
        assert f"events/rank-0000{rank}.attempt-1.jsonl" in content
    assert json.loads(content["attempts/00001/begin.json"])["life"] == 1
    assert "spec.json" not in content
    assert "launch/meeting.json" not in content


def test_a_start_begins_with_the_newest_checkpoints_and_without_logs(tmp_path):
    code, output = tmp_path / "code", tmp_path / "output"
    (code / "run").mkdir(parents=True)
    (code / "run" / "spec.json").write_text('{"id": "train-1"}')
    names = [f"checkpoints/step-0000000{step}.pt" for step in (1, 2, 3)]
    names += ["checkpoints/mine.pt", "checkpoints/step-00000001.dcp/part"]
    for name in (*names, "logs/rank-00000.log", "launch/meeting.json", "own/state", "own/.aside"):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text(name)
    run, _ = prepare_run(code, output)
    assert [path.name for path in sorted(run.checkpoints_folder.iterdir())] == [
        "mine.pt",
        "step-00000002.pt",
        "step-00000003.pt",
    ]
    assert (run.path / "own/state").read_text() == "own/state"
    gone = ("logs/rank-00000.log", "launch/meeting.json", "own/.aside")
    assert not [name for name in gone if (run.path / name).exists()]


def test_sigterm_stops_the_ranks_with_what_they_have_saved(azure_job, tmp_path):
    job, _ = azure_job(nodes=1)
    process = job.start_node(0, num_nodes=1, GATE=str(tmp_path / "gate"))
    wait_for(lambda: state_of(job, 0)["step"] == 20)
    process.send_signal(signal.SIGTERM)
    codes = job.end()
    content = published(job)
    ended = json.loads(content["attempts/00000/verdict.json"])
    assert (ended["kind"], ended["state"]) == ("preempted", "preempted")
    assert "verdict.json" not in content  # Azure alone knows whether the job comes back
    assert codes == {0: ended["exit_code_of_run"]}


def test_a_first_node_that_is_silent_is_told(azure_job, tmp_path):
    job, _ = azure_job(join_timeout_s=3)
    job.start_node(1, GATE=str(tmp_path / "gate"))
    assert job.end() == {1: 1}
    verdict = json.loads(published(job)["verdict.json"])
    assert verdict["kind"] == "launch"
    assert (
        "could not reach the agent of node 0 within 3 s; at 10.78.0.1 port 6105"
        in (verdict["message"])
    )


def test_a_node_with_another_secret_is_turned_away(azure_job, tmp_path):
    job, _ = azure_job(join_timeout_s=8)
    job.start_node(1, key="77" * 32, GATE=str(tmp_path / "gate"))
    wait_for(lambda: list((job.nodes[1][2] / "disk").glob("*/*/spec.json")))  # it tries from now on
    job.start_node(0, GATE=str(tmp_path / "gate"))
    assert set(job.end()) == {0, 1}
    content = published(job)
    assert "node 1 did not join within 8 s" in json.loads(content["verdict.json"])["message"]
    assert b"does not know the secret" in content["logs/agent-00000.log"]
