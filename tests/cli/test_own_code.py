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


SAYS = '#!/bin/sh\necho "$RANK of $WORLD_SIZE:" "$@"\n'


def make_program(user, name="say", text=SAYS):
    path = user.write(name, text)
    path.chmod(0o755)
    return path


def test_a_program_runs_in_every_rank_from_path_job_files_sweeps_and_python(hpcdist, monkeypatch):
    make_program(hpcdist, "bin/say")
    hpcdist.environment["PATH"] = f"{hpcdist.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    hpcdist.write("jobs/mine.yaml", "workload: program\nprogram: ../bin/say\nargs: [a]\n")
    done = hpcdist("submit", "--no-python", "say", "--nodes", "2", "--local", "--", "x  y", "-m")
    assert sorted(done.stdout.splitlines()) == [
        "[rank 0] 0 of 2: x  y -m",
        "[rank 1] 1 of 2: x  y -m",
    ]
    swept = hpcdist("submit", "mine", "--local", "--sweep", "args=[b],[c]")
    assert [line for line in swept.stdout.splitlines() if " of " in line] == [
        "[rank 0] 0 of 1: b",
        "[rank 0] 0 of 1: c",
    ]
    rendered = hpcdist("render", "mine", "--scheduler", "slurm", "--gpus", "2")
    assert "# hpcdist: mine\n" in rendered.stdout, rendered.stderr
    monkeypatch.chdir(hpcdist.folder)
    run = package.submit("./bin/say", ["p"], is_program=True, scheduler="local")
    assert run.wait().state == "done"
    assert run.logs() == "0 of 1: p\n"
    runs = package.sweep("./bin/say", {"args": [["q"]]}, is_program=True, scheduler="local")
    assert [run.logs() for run in runs] == ["0 of 1: q\n"]


def test_a_program_that_is_no_python_and_options_that_contradict_are_refused(hpcdist):
    make_program(hpcdist)
    refused = hpcdist("submit", "say", "--local")
    assert refused.returncode == 2
    assert "run a program that is not Python with --no-python: ./say" in refused.stderr
    assert hpcdist("submit", "--no-python", "say", "--local").returncode == 2
    both = hpcdist("submit", "-m", "--no-python", "say", "--local")
    assert both.returncode == 2
    assert "-m and --no-python contradict each other" in both.stderr
    assert hpcdist.runs == []


SCRIPT = "import os\nprint('in', os.getcwd(), 'from', os.environ['HPCDIST_SUBMIT_DIR'])\n"


@pytest.fixture
def tree(tmp_path, hpcdist):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    hpcdist.write("train.py", SCRIPT)
    return tmp_path


def folders(text):
    return {line for line in text.splitlines() if line.startswith("cd ")}


def test_render_names_the_folder_of_the_run_and_makes_nothing(hpcdist, tree):
    rendered = hpcdist("render", "train.py", "--local", "--snapshot")
    assert rendered.returncode == 0, rendered.stderr
    assert not hpcdist.runs
    done = hpcdist("submit", "train.py", "--local", "--snapshot", "--json")
    run = json.loads(done.stdout)
    folder = f"{run['path']}/code"
    with open(f"{run['path']}/script.sh") as script:
        assert folders(script.read()) == {f"cd {folder}"}
    assert folders(rendered.stdout) == {f"cd {tree}/runs/RUN/code"}
    assert f"in {folder} from {tree}" in done.stderr


def test_the_runs_of_a_sweep_share_one_copy_and_without_one_a_job_runs_where_it_is(hpcdist, tree):
    done = hpcdist("submit", "train.py", "--local", "--snapshot", "--repeat", "2")
    (copy,) = (tree / "runs").glob("*/code")
    assert done.stdout.count(f"in {copy} from {tree}") == 2, done.stderr
    done = hpcdist("submit", "train.py", "--local")
    assert f"in {tree} from {tree}" in done.stdout
    assert len([*(tree / "runs").glob("*/code")]) == 1


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
    bad = hpcdist("init", "../x")
    assert bad.returncode == 2
    assert "NAME is '../x'" in bad.stderr
