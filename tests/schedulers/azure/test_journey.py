"""Runs on Azure from submission to their ends: the command, the real SDK, a stand-in behind it."""

import json

import pytest

from hpcdist.runs.run import Run
from hpcdist.schedulers.azure.node import prepare_run

TWO = ("--nodes", "2", "--gpus", "1")


def state_of(hpcdist, run):
    (found,) = json.loads(hpcdist("status", run.id, "--json").stdout)
    return found["state"], found["reason"]


def test_a_run_goes_to_azure_with_its_snapshot_and_ends_there(hpcdist, azure, unpack, tmp_path):
    (hpcdist.folder / ".env").write_text("WANDB_API_KEY=7c0ffee0badcafe57c0ffee0badcafe57c0ffee0\n")
    run = hpcdist.submit(*TWO, "--time", "30")

    assert azure.job_ids() == [run.id]
    job = azure.jobs[run.id]["properties"]
    assert job["resources"]["instanceCount"] == 2
    assert job["limits"]["timeout"] == "PT30M"
    assert job["properties"] == {}  # nothing of the git repository
    rendered = hpcdist("render", "train.py", *TWO, "--time", "30").stdout
    named = rendered.replace("name: run\n", f"name: {run.id}\n")
    named = named.replace("/hpcdist/run\n", f"/hpcdist/{run.id}\n")
    assert (run.path / "job.yml").read_text() == named
    assert not (run.path / "upload").exists()
    code = tmp_path / "code"
    unpack(code)
    assert (code / "snapshot" / "train.py").read_text() == "print('trained')\n"
    assert {path.name for path in code.iterdir()} == {"lib", "run", "snapshot"}
    assert (code / "lib/hpcdist/schedulers/azure/azure.py").exists()
    files = [path for path in code.rglob("*") if path.is_file()]
    assert not [path for path in files if b"7c0ffee0badcafe5" in path.read_bytes()]

    assert state_of(hpcdist, run) == ("pending", "it waits for nodes of its compute")
    refused = hpcdist("submit", "train.py", "--after", run.id, code=2)
    assert "--after: a job of Azure cannot wait for others" in refused.stderr
    assert azure.job_ids() == [run.id]
    azure.set_state(run.id, "NotResponding")
    assert state_of(hpcdist, run) == ("running", "its nodes have stopped answering Azure")
    azure.set_state(run.id, "Completed")
    assert state_of(hpcdist, run)[0] == "done"


def test_what_ranks_print_comes_home_while_the_job_runs(hpcdist, azure):
    run = hpcdist.submit()
    azure.set_state(run.id, "Running")
    azure.put_output(run.id, "logs/rank-00000.log", b"first\n")
    assert hpcdist("logs", run.id).stdout == "first\n"
    azure.fail("GET", "blob.core.windows.net", 403, code="AuthorizationFailure", times=9)
    state, reason = state_of(hpcdist, run)
    assert state == "running"
    assert "its run directory cannot be brought here" in reason


def test_a_sweep_is_a_job_per_run_which_cancel_ends_where_it_has_not_ended(hpcdist, azure):
    sweep = hpcdist("submit", "train.py", "--sweep", "nodes=1,2,3").stdout.split()[0]
    names = sorted(azure.jobs)
    counts = [azure.jobs[name]["properties"]["resources"]["instanceCount"] for name in names]
    assert counts == [1, 2, 3]
    for name, state in zip(names, ("Queued", "Running", "Failed"), strict=True):
        azure.set_state(name, state)
    hpcdist("cancel", sweep)
    ended = [azure.jobs[name]["properties"]["status"] for name in names]
    assert ended == ["Canceled", "Canceled", "Failed"]
    found = json.loads(hpcdist("status", sweep, "--json").stdout)
    assert [one["state"] for one in found] == ["cancelled", "cancelled", "failed"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["train.py", "--sweep", "nodes=1,2", "--max-parallel", "1"],
            "--max-parallel: a job of Azure cannot wait",
        ),
        (["train.py", "--no-snapshot"], "--no-snapshot: jobs of Azure find no files"),
        (["train.py", "--nodes", "5"], "the compute gpu-cluster has 4 nodes at most"),
        (["data/train.py"], "Azure has no other files than the snapshot's"),  # git ignores it
        (
            ["train.py", "--", "--token", "ghp_0123456789abcdefghijklmnopqrstuvwxyzAB"],
            "what looks like a secret",
        ),
    ],
    ids=["max-parallel", "no-snapshot", "nodes", "ignored", "secret"],
)
def test_what_azure_cannot_do_is_refused_before_anything_is_sent(hpcdist, azure, words, said):
    (hpcdist.folder / "data").mkdir()
    (hpcdist.folder / "data" / "train.py").write_text("")
    done = hpcdist("submit", *words, code=2)
    assert said in done.stderr
    assert (azure.jobs, azure.blobs) == ({}, {})
    assert not list((hpcdist.folder / "runs").glob("train*"))


def test_a_run_at_its_time_limit_names_the_command_that_goes_on(hpcdist, azure, unpack, tmp_path):
    keys = ("--cluster", "azure-gpu", "--sweep", "train.seed=3,4", "--set", "name=it's")
    run = Run(
        hpcdist.folder / "runs" / (hpcdist("submit", "ddp", *keys).stdout.split()[0] + "-000")
    )
    azure.set_state(run.id, "Failed")
    verdict = {"kind": "time_limit", "state": "preempted", "message": "m", "exit_code_of_run": 75}
    azure.put_output(run.id, "verdict.json", json.dumps(verdict).encode())
    azure.put_output(run.id, "checkpoints/step-00000004.ckpt", b"whole enough")
    (found,) = json.loads(hpcdist("status", run.id, "--json").stdout)
    assert found["continue_with"] == f"hpcdist resume {run.id}"
    done = hpcdist("resume", run.id)
    assert "continues from its checkpoint of step 4: as run" in done.stderr
    *_, name = sorted(azure.jobs, key=lambda name: azure.jobs[name]["systemData"]["createdAt"])
    assert done.stdout.split() == [name]
    job = Run(run.path.parent / name).read_launch()[0]
    assert (job.name, job.train.seed) == ("it's", 3)
    assert job.checkpoint.resume == str(run.path)

    # The checkpoint goes along, and begins the job on each node.
    code, output = tmp_path / "code", tmp_path / "output"
    output.mkdir()
    unpack(code)
    assert (code / "resume" / "step-00000004.ckpt").read_bytes() == b"whole enough"
    on_node, _ = prepare_run(code, output)
    assert on_node.spec.outline.checkpoint.resume == str(code / "resume")


def test_the_doctor_says_how_many_nodes_the_compute_has(hpcdist):
    done = hpcdist("doctor", "--no-job", "--json", "--nodes", "5", "--gpus", "1", code=1)
    states = {one["name"]: one for one in json.loads(done.stdout)}
    assert states["workspace"]["state"] == "FAIL"
    assert "resources.nodes is 5, but the compute gpu-cluster has 4" in str(states["workspace"])
