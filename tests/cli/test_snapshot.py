"""--snapshot and --no-snapshot, as a user gives them."""

import json
import subprocess

import pytest

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
