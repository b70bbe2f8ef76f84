"""What `make test` makes of tests that fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN_SUITE = Path(__file__).parent / "run-suite"
FAILS_FIRST = """
from pathlib import Path

import pytest

@pytest.mark.parametrize("name", {names})
def test_first(name):
    was_there = Path(name).exists()
    Path(name).touch()
    assert was_there

def test_steady():
    pass
"""
FAILS_ALWAYS = "\ndef test_wrong():\n    assert False\n"


@pytest.fixture
def run_suite(tmp_path):
    def run(text):
        (tmp_path / "test_those.py").write_text(text)
        return subprocess.run(
            [RUN_SUITE, sys.executable, "-p", "xdist", "--numprocesses=0", "--rootdir=."],
            cwd=tmp_path,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # others take a second
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_what_fails_beside_others_and_passes_alone_is_named(run_suite):
    done = run_suite(FAILS_FIRST.format(names=["a b", "c"]))
    assert done.returncode == 0, done.stdout
    told = done.stdout.partition("UNSTEADY")[2].splitlines()
    assert told[1:] == ["test_those.py::test_first[a b]", "test_those.py::test_first[c]"]


def test_what_fails_alone_too_has_failed(run_suite):
    done = run_suite(FAILS_FIRST.format(names=["a"]) + FAILS_ALWAYS)
    assert done.returncode == 1
    assert "UNSTEADY" not in done.stdout
    assert "1 failed, 1 passed" in done.stdout.splitlines()[-1]


def test_what_cannot_be_read_has_failed(run_suite):
    done = run_suite("def test_(")
    assert done.returncode > 0
    assert "UNSTEADY" not in done.stdout


@pytest.mark.parametrize(
    "text", [FAILS_FIRST.format(names=["a", "b", "c", "d"]), "# no tests"], ids=["many", "none"]
)
def test_nothing_is_run_again_where_chance_is_no_explanation(run_suite, text):
    done = run_suite(text)
    assert done.returncode > 0
    assert "Once more" not in done.stdout


def test_what_passes_is_run_once(run_suite):
    done = run_suite("def test_right():\n    pass\n")
    assert done.returncode == 0
    assert done.stdout.count("1 passed") == 1
