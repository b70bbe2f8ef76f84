"""Modules are submitted by name, and run as by python -m."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdist.base.errors import JobError
from hpcdist.job.load import load_job

TELL = """
import json, sys
from ..words import WORD

print(json.dumps({"file": __file__, "path": sys.path[0]}))
"""
RECORDS = """
import os, sys
from hpcdist import record

record.start()
for step in range(5):
    record.step(samples=1)
print(sys.argv[1:], os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise RuntimeError("once")
"""


@pytest.fixture
def user(hpcdist):
    hpcdist.write("pkg/__init__.py", "raise_if_imported = __import__('os').environ['RANK']")
    hpcdist.write("pkg/words.py", "WORD = 'hello'")
    hpcdist.write("pkg/sub/__init__.py", "")
    hpcdist.write("pkg/sub/tell.py", TELL)
    hpcdist.write("pkg/train.py", RECORDS)
    return hpcdist


def test_a_module_is_restarted_recorded_and_summed_up_as_a_script_is(user):
    user.write("jobs/mine.yaml", "workload: module\nmodule: pkg.train\nargs: [a]\n")
    done = user("submit", "mine", "--local", "--gpus", "2", "--max-restarts", "1", "--", "b")
    assert done.returncode == 0, done.stderr
    assert "[rank 1] ['a', 'b'] 0" in done.stdout
    assert "[rank 1] ['a', 'b'] 1" in done.stdout
    assert "attempt 0 failed: rank 1 (node 0, host " in done.stderr
    assert "RuntimeError: once" in done.stderr
    assert "starting again (1 of 1)" in done.stderr
    (run,) = json.loads(user("summary", "--json").stdout)
    assert (run["job"], run["state"], run["world_size"]) == ("mine", "done", 2)
    (folder,) = user.runs
    job = json.loads((folder / "spec.json").read_text())["job"]
    assert (job["module"], job["script"]) == ("pkg.train", str(user.folder / "pkg/train.py"))


def test_a_snapshot_of_a_module_is_what_runs(user):
    subprocess.run(["git", "init", "-q"], cwd=user.folder, check=True, timeout=150)
    done = user("submit", "-m", "pkg.sub.tell", "--local", "--snapshot")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.partition("] ")[2])
    (spec,) = user.folder.glob("runs/*/spec.json")
    snapshot = Path(json.loads(spec.read_text())["snapshot"]["folder"])
    assert snapshot != user.folder
    assert told["path"] == str(snapshot)
    assert told["file"] == str(snapshot / "pkg/sub/tell.py")
    assert "not among the files" not in done.stderr


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("pkg.sub.tel", "there is no module pkg.sub.tel in pkg/sub", "the working directory is"),
        (
            "pgk.train",
            "there is no module pgk in the working directory",
            "the working directory is",
        ),
        ("pkg", "pkg is a package without a module __main__", "-m pkg.MODULE"),
        ("pkg.train.more", "there is no module pkg.train.more", "the working directory is"),
        ("pkg/train.py", "'pkg/train.py' is not the name of a module", "it would be pkg.train"),
        ("math", "the module math has no Python source", "a .py file"),
        ("broken", "broken.py: line 1: ", "correct the script"),
        ("ns", "ns is a package without a module __main__", "-m ns.MODULE"),
        ("ns.sub.tel", "there is no module ns.sub.tel in ns/sub", "the working directory is"),
    ],
)
def test_a_module_that_cannot_be_run_is_refused_and_nothing_of_it_imported(
    user, monkeypatch, name, message, hint
):
    user.write("broken.py", "if True")
    user.write("ns/sub/tell.py", "")
    monkeypatch.chdir(user.folder)
    with pytest.raises(JobError) as error:
        load_job(name, kind="module")
    assert message in error.value.message
    assert hint in error.value.hint
    assert "pkg" not in sys.modules


def test_a_package_is_run_by_its_main_module(user, monkeypatch):
    monkeypatch.chdir(user.folder)
    main = user.write("pkg/__main__.py", "print(__name__, __package__, __spec__.name)")
    assert Path(load_job("pkg", kind="module").job.script) == main
    done = user("submit", "-m", "pkg", "--local")
    assert done.stdout == "[rank 0] __main__ pkg pkg.__main__\n"
