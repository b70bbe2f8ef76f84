"""What must stay light: importing hpcdist, and the verbs that only look."""

import json
import subprocess
import sys

import pytest

from hpcdist.cluster.load import shipped_file

HEAVY = (
    "torch",
    "numpy",
    "matplotlib",
    "torchvision",
    "pytorch_lightning",
    "submitit",
    "azure.ai.ml",
)

VERBS = [
    ["--help"],
    ["submit", "--help"],
    ["jobs"],
    ["runs"],
    ["status"],
    ["render", "ddp", "--nodes", "2", "--gpus", "2", "--local"],
    ["attach", "nope"],
    ["summary"],
    ["plan", "check", "--local"],
    ["cluster", "show"],
    ["data", "check", "digits"],
    ["cluster", "copy", "dtu"],
    ["explain", "ddp", "--scheduler", "slurm"],
    ["explain", "train.lr"],
    ["render", "lightning", "--local"],
    ["explain", "ddp", "--cluster", "azure-gpu"],
]

# Each verb in a fork of a process that has what the command itself takes, and no more.
EACH_VERB = f"""
import json, os, sys, traceback
from hpcdist.cli.main import main

def imported_by(arguments):
    sys.stdout = sys.stderr = open(os.devnull, "w")
    main(arguments)
    return [name for name in {HEAVY!r} if name in sys.modules]

for arguments in json.loads(sys.argv[1]):
    if os.fork() == 0:
        saying = os.dup(1)
        try:
            found = imported_by(arguments)
        except BaseException:
            found = traceback.format_exc()
        os.write(saying, json.dumps(found).encode() + b"\\n")
        os._exit(0)
    os.wait()
"""


def run_python(code, folder, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """What heavy modules each verb imported, by its words; in the place of these, how it failed."""
    folder = tmp_path_factory.mktemp("project")
    profiles = shipped_file("azure").replace("default: azure-gpu\n", "")
    (folder / "hpcdist.yaml").write_text(profiles)
    done = run_python(EACH_VERB, folder, json.dumps(VERBS))
    found = map(json.loads, done.stdout.splitlines())
    return {" ".join(verb): names for verb, names in zip(VERBS, found, strict=True)}


@pytest.mark.parametrize("verb", [" ".join(verb) for verb in VERBS])
def test_a_verb_that_only_looks_imports_nothing_heavy(imported, verb):
    assert imported[verb] == []


NAMES = f"""
import sys
before = set(sys.modules)
import hpcdist
names = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(sorted(names - set(sys.stdlib_module_names)))
hpcdist.submit, hpcdist.load, hpcdist.SubmittedRun
print([name for name in {HEAVY!r} if name in sys.modules])
hpcdist.nonsense
"""


def test_importing_hpcdist_and_its_names_imports_nothing_heavy(tmp_path):
    done = run_python(NAMES, tmp_path)
    assert done.stdout.splitlines() == ["['hpcdist']", "[]"]
    assert "AttributeError: module 'hpcdist' has no attribute 'nonsense'" in done.stderr


def test_an_agent_imports_neither_data_sets_nor_trainers(tmp_path):
    """There is one on each node of each run, and a script has no use for them."""
    code = (
        "import sys\nimport hpcdist.entry, hpcdist.agent.agent\n"
        "print([name for name in sys.modules if name.startswith('hpcdist.data') or\n"
        "       name.startswith('hpcdist.training.') and 'checkpoint' not in name])"
    )
    assert run_python(code, tmp_path).stdout.strip() == "[]"
