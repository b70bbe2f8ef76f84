"""The user's own code: modules by name, programs in any language, the copy of the work tree from
which a job may run, and the script to begin with."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hpcdist as package
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
    (copy,) = user.folder.glob("runs/*/code")
    assert told == {"file": f"{copy}/pkg/sub/tell.py", "path": str(copy)}


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("pkg.sub.tel", "there is no module pkg.sub.tel in pkg/sub", "the working directory is"),
        ("pkg", "pkg is a package without a module __main__", "-m pkg.MODULE"),
        ("pkg/train.py", "'pkg/train.py' is not the name of a module", "it would be pkg.train"),
        ("math", "the module math has no Python source", "a .py file"),
    ],
)
def test_a_module_that_cannot_be_run_is_refused_and_nothing_of_it_imported(
    user, monkeypatch, name, message, hint
):
    monkeypatch.chdir(user.folder)
    with pytest.raises(JobError) as error:
        load_job(name, kind="module")
    assert message in error.value.message
    assert hint in error.value.hint
    assert "pkg" not in sys.modules


SAYS = '#!/bin/sh\necho "$RANK of $WORLD_SIZE:" "$@"\n'


def test_a_program_runs_in_every_rank_from_path_job_files_and_python(hpcdist, monkeypatch):
    hpcdist.write("bin/say", SAYS).chmod(0o755)
    hpcdist.environment["PATH"] = f"{hpcdist.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    hpcdist.write("jobs/mine.yaml", "workload: program\nprogram: ../bin/say\nargs: [a]\n")
    done = hpcdist("submit", "--no-python", "say", "--nodes", "2", "--local", "--", "x  y", "-m")
    assert sorted(done.stdout.splitlines()) == [
        "[rank 0] 0 of 2: x  y -m",
        "[rank 1] 1 of 2: x  y -m",
    ]
    assert hpcdist("submit", "mine", "--local").stdout == "[rank 0] 0 of 1: a\n"
    hpcdist.write("tell", SAYS).chmod(0o755)
    refused = hpcdist("submit", "tell", "--local")
    assert "run a program that is not Python with --no-python: ./tell" in refused.stderr
    monkeypatch.chdir(hpcdist.folder)
    run = package.submit("./bin/say", ["p"], is_program=True, scheduler="local")
    assert run.wait().state == "done"
    assert run.logs() == "0 of 1: p\n"


SCRIPT = "import os\nprint('in', os.getcwd(), 'from', os.environ['HPCDIST_SUBMIT_DIR'])\n"


def test_the_runs_of_a_sweep_share_one_copy_and_render_names_it_and_makes_nothing(hpcdist):
    tree = hpcdist.folder
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    hpcdist.write("train.py", SCRIPT)
    rendered = hpcdist("render", "train.py", "--local", "--snapshot")
    assert f"\ncd {tree}/runs/RUN/code\n" in rendered.stdout, rendered.stderr
    assert not hpcdist.runs
    done = hpcdist("submit", "train.py", "--local", "--snapshot", "--repeat", "2")
    (copy,) = (tree / "runs").glob("*/code")
    assert done.stdout.count(f"in {copy} from {tree}") == 2, done.stderr
    done = hpcdist("submit", "train.py", "--local")
    assert f"in {tree} from {tree}" in done.stdout


ROOT = Path(__file__).parents[2]


def test_a_script_is_the_example_and_nothing_is_overwritten(hpcdist):
    done = hpcdist("init")
    assert done.stdout == "train.py\n"
    assert "hpcdist submit train.py --gpus 2 --local" in done.stderr
    made = (hpcdist.folder / "train.py").read_text()
    example = (ROOT / "examples" / "ddp_digits.py").read_text()
    assert made == example.replace("examples/ddp_digits.py", "train.py")
    again = hpcdist("init")
    assert again.returncode == 2
    assert "train.py exists already, and was not changed" in again.stderr
