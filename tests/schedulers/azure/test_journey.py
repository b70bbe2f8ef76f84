"""Runs on Azure from submission to their ends: the command, the real SDK, a stand-in behind it."""

import io
import json
import os
import subprocess
import sys
import tarfile

import pytest

from hpcdist.runs.run import Run
from hpcdist.schedulers.azure.node import prepare_run

LOG = "logs/rank-00000.log"
TWO = ("--nodes", "2", "--gpus", "1")


def uploaded(azure):
    """Return the names and contents of the newest archive that was uploaded, which alone is."""
    blobs = {name: one for name, (one, _) in azure.blobs.items() if name.startswith("code-")}
    assert {name.rpartition("/")[2] for name in blobs} == {"code.tar.gz"}
    *_, content = blobs.values()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {
            one.name: archive.extractfile(one).read() if one.isfile() else one.linkname
            for one in archive
        }


def state_of(hpcdist, run):
    (found,) = json.loads(hpcdist("status", run.id, "--json").stdout)
    return found["state"], found["reason"]


def test_a_run_goes_to_azure_with_its_snapshot_and_ends_there(hpcdist, azure):
    (hpcdist.folder / "data").mkdir()
    (hpcdist.folder / "tool.sh").write_text("#!/bin/sh\n")
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
    found = uploaded(azure)
    assert found["snapshot/train.py"] == b"print('trained')\n"
    assert {name.partition("/")[0] for name in found} == {"lib", "run", "snapshot"}
    assert "lib/hpcdist/schedulers/azure/azure.py" in found
    assert not {"snapshot/.env", "snapshot/data"} & set(found)
    assert b"7c0ffee0badcafe5" not in b"".join(
        one for one in found.values() if isinstance(one, bytes)
    )
    assert run.read_submission().scheduler == "azure"

    assert state_of(hpcdist, run) == ("pending", "it waits for nodes of its compute")
    azure.set_state(run.id, "Running")
    assert state_of(hpcdist, run) == ("running", None)
    azure.set_state(run.id, "NotResponding")
    assert state_of(hpcdist, run)[1] == "its nodes have stopped answering Azure"
    azure.set_state(run.id, "Completed")
    assert state_of(hpcdist, run)[0] == "done"


def be_node(azure, run, folder):
    """Be the one node of a job, in the folder of what was uploaded; publish what it has written."""
    (folder / "mount").mkdir()
    variables = {"WORLD_SIZE": "1", "NODE_RANK": "0", "MASTER_ADDR": "10.0.0.4"}
    words = [sys.executable, "-u", "-m", "hpcdist.schedulers.azure.node", str(folder / "mount")]
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | variables | {"PYTHONPATH": str(folder / "lib"), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for path in (folder / "mount").rglob("*"):
        if path.is_file():
            azure.put_output(run.id, path.relative_to(folder / "mount"), path.read_bytes())


def test_what_a_node_published_is_brought_home_when_the_job_has_ended(
    hpcdist, azure, unpack, tmp_path
):
    run = hpcdist.submit("--set", "launch.device=cpu")
    azure.set_state(run.id, "Running")
    unpack(tmp_path / "node")
    be_node(azure, run, tmp_path / "node")
    hpcdist("status", run.id)
    assert run.read_verdict().state == "done"
    other = hpcdist.submit("--set", "launch.device=cpu")
    azure.set_state(other.id, "Completed")
    for name, (content, _) in list(azure.blobs.items()):
        if name.startswith(f"blobs/hpcdist/{run.id}/"):
            azure.put_output(other.id, name.partition(f"/{run.id}/")[2], content)
    spec = other.spec_file.read_bytes()
    assert state_of(hpcdist, other)[0] == "done"  # its verdict was brought by this question
    assert other.read_verdict().kind == "done"
    assert other.spec_file.read_bytes() == spec
    assert "trained" in hpcdist("logs", other.id).stdout
    (found,) = json.loads(hpcdist("summary", other.id, "--json").stdout)
    assert (found["state"], found["cluster"]) == ("done", "azure-gpu")


def test_the_checkpoint_to_go_on_from_is_brought_along(hpcdist, azure, tmp_path):
    folder = hpcdist.folder / "runs" / "before" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "step-00000004.ckpt").write_bytes(b"whole enough")
    hpcdist("submit", "ddp", "--set", "checkpoint.resume=runs/before", "--gpus", "1")
    found = uploaded(azure)
    assert found["resume/step-00000004.ckpt"] == b"whole enough"
    code = tmp_path / "code"
    for name in ("run/spec.json", "resume/step-00000004.ckpt"):
        (code / name).parent.mkdir(parents=True)
        (code / name).write_bytes(found[name])
    (tmp_path / "output").mkdir()
    run, _ = prepare_run(code, tmp_path / "output")
    assert run.spec.outline.checkpoint.resume == str(code / "resume")


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
    assert hpcdist("cancel", sweep).stderr.count("had ended already") == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--sweep", "nodes=1,2", "--max-parallel", "1"],
            "--max-parallel: a job of Azure cannot wait",
        ),
        (["--no-snapshot"], "--no-snapshot: jobs of Azure find no files"),
        (["--nodes", "5"], "the compute gpu-cluster has 4 nodes at most"),
        (
            ["--", "--token", "ghp_0123456789abcdefghijklmnopqrstuvwxyzAB"],
            "what looks like a secret",
        ),
    ],
    ids=["max-parallel", "no-snapshot", "nodes", "secret"],
)
def test_what_azure_cannot_do_is_refused_before_anything_is_sent(hpcdist, azure, words, said):
    done = hpcdist("submit", "train.py", *words, code=2)
    assert said in done.stderr
    assert (azure.jobs, azure.blobs) == ({}, {})
    assert not list((hpcdist.folder / "runs").glob("train*"))


def test_a_run_after_another_is_refused(hpcdist, azure):
    run = hpcdist.submit()
    done = hpcdist("submit", "train.py", "--after", run.id, code=2)
    assert "--after: a job of Azure cannot wait for others" in done.stderr
    assert azure.job_ids() == [run.id]


def test_a_script_outside_of_git_is_refused(hpcdist, azure, tmp_path):
    (hpcdist.folder / "data").mkdir()
    (hpcdist.folder / "data" / "train.py").write_text("")
    done = hpcdist("submit", "data/train.py", code=2)
    assert "Azure has no other files than the snapshot's" in done.stderr


def publish(azure, run, **contents):
    """Publish files, as a node does."""
    for path, content in contents.items():
        azure.put_output(run.id, path, content)


def test_what_ranks_print_comes_home_while_the_job_runs(hpcdist, azure):
    run = hpcdist.submit()
    azure.set_state(run.id, "Running")
    publish(azure, run, **{LOG: b"first\n"})
    assert hpcdist("logs", run.id).stdout == "first\n"
    publish(azure, run, **{LOG: b"first\nsecond\n"})
    assert state_of(hpcdist, run) == ("running", None)
    assert run.log_file(0).read_text() == "first\nsecond\n"
    azure.fail("GET", "blob.core.windows.net", 403, code="AuthorizationFailure", times=9)
    state, reason = state_of(hpcdist, run)
    assert state == "running"
    assert "its run directory cannot be brought here" in reason


def test_a_run_at_its_time_limit_names_the_command_that_goes_on(hpcdist, azure):
    keys = ("--cluster", "azure-gpu", "--sweep", "train.seed=3,4", "--set", "name=it's")
    run = Run(
        hpcdist.folder / "runs" / (hpcdist("submit", "ddp", *keys).stdout.split()[0] + "-000")
    )
    azure.set_state(run.id, "Failed")
    verdict = {"kind": "time_limit", "state": "preempted", "message": "m", "exit_code_of_run": 75}
    saved = {"checkpoints/step-00000004.ckpt": b"whole enough"}
    publish(azure, run, **{"verdict.json": json.dumps(verdict).encode()}, **saved)
    (found,) = json.loads(hpcdist("status", run.id, "--json").stdout)
    assert found["continue_with"] == f"hpcdist resume {run.id}"
    done = hpcdist("resume", run.id)
    assert "continues from its checkpoint of step 4: as run" in done.stderr
    *_, name = sorted(azure.jobs, key=lambda name: azure.jobs[name]["systemData"]["createdAt"])
    assert done.stdout.split() == [name]
    job = Run(run.path.parent / name).read_launch()[0]
    assert (job.name, job.train.seed) == ("it's", 3)
    assert job.checkpoint.resume == str(run.path)
    assert b"whole enough" in uploaded(azure)["resume/step-00000004.ckpt"]


def test_the_doctor_finds_all_well_or_says_how_many_nodes_the_compute_has(hpcdist, azure):
    def findings(nodes, code):
        words = ("doctor", "--no-job", "--json", "--nodes", nodes, "--gpus", "1")
        return {one["name"]: one for one in json.loads(hpcdist(*words, code=code).stdout)}

    found = findings("2", 0)
    states = {name: one["state"] for name, one in found.items()}
    assert states.pop("job") == "skip"  # the runs folder may be in /tmp: nobody else reads it
    assert set(states.values()) == {"pass"}
    expected = "ml-course knows you, and has gpu-cluster: nodes Standard_NC24ads_A100_v4"
    assert found["workspace"]["detail"] == expected
    found = findings("5", 1)["workspace"]
    assert found["state"] == "FAIL"
    assert "resources.nodes is 5, but the compute gpu-cluster has 4" in found["detail"]
