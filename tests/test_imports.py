"""What must stay light: importing hpcdist, and the verbs that only look."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "matplotlib", "torchvision", "pytorch_lightning", "submitit")

VERBS = [
    ["--help"],
    ["--version"],
    ["submit", "--help"],
    ["jobs"],
    ["runs"],
    ["status"],
    ["watch"],
    ["watch", "--help"],
    ["render", "ddp", "--nodes", "2", "--gpus", "2", "--local"],
    ["cancel", "nope"],
    ["logs", "nope"],
    ["summary"],
    ["submit", "nope", "--local"],
    ["cluster", "list"],
    ["cluster", "show"],
    ["cluster", "copy", "dtu"],
    ["render", "ddp", "--scheduler", "slurm", "--explain"],
    ["render", "lightning", "--local"],
]

SHOW_MODULES = f"""
import atexit, sys
heavy = {HEAVY!r}
atexit.register(lambda: print("heavy:", [name for name in heavy if name in sys.modules]))
"""


def run_python(code, folder, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_a_verb_that_only_looks_imports_nothing_heavy(tmp_path, arguments):
    code = f"{SHOW_MODULES}\nfrom hpcdist.cli.main import main\nsys.exit(main())"
    done = run_python(code, tmp_path, *arguments)
    assert done.stdout.splitlines()[-1] == "heavy: []", done.stderr
    assert "Traceback" not in done.stderr


def test_importing_hpcdist_imports_none_of_its_dependencies(tmp_path):
    code = (
        "import sys\nbefore = set(sys.modules)\nimport hpcdist\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(names - set(sys.stdlib_module_names)))"
    )
    assert run_python(code, tmp_path).stdout.strip() == "['hpcdist']"


def test_the_names_of_the_api_are_there_without_torch(tmp_path):
    code = f"{SHOW_MODULES}\nimport hpcdist\nhpcdist.submit, hpcdist.load, hpcdist.SubmittedRun"
    done = run_python(code, tmp_path)
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_an_unknown_name_of_the_package_is_an_attribute_error(tmp_path):
    done = run_python("import hpcdist\nhpcdist.nonsense", tmp_path)
    assert "AttributeError: module 'hpcdist' has no attribute 'nonsense'" in done.stderr
