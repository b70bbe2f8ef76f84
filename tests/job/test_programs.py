"""Programs in any language: found as execvp finds them, refused where they cannot be executed."""

import os
import sys

import pytest

from hpcdist.base.errors import JobError
from hpcdist.job.load import load_job


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def write(tmp_path):
    def write_program(name, text="#!/bin/sh\n", mode=0o755):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    return write_program


def test_a_name_is_looked_for_in_path_and_a_path_is_not(write):
    in_path, here = write("bin/tool"), write("tool")
    assert load_job("tool", kind="program").job.script == str(in_path)
    job = load_job("./tool", kind="program", script_args=["-x"]).job
    assert (job.name, job.workload, job.program) == ("tool", "program", "./tool")
    assert (job.script, job.args) == (str(here), ["-x"])
    assert load_job(sys.executable, kind="program").job.script == sys.executable  # compiled


def test_in_a_job_file_a_path_is_relative_to_the_file_and_a_name_is_in_path(write):
    in_path, beside = write("bin/tool"), write("code/run.sh")
    write("jobs/one.yaml", "workload: program\nprogram: ../code/run.sh\nargs: [a]\n", 0o644)
    write("jobs/two.yaml", "workload: program\nprogram: tool\n", 0o644)
    job = load_job("one", script_args=["b"]).job
    assert (job.name, job.script, job.args) == ("one", str(beside), ["a", "b"])
    assert load_job("two").job.script == str(in_path)
    assert load_job("two", overrides=["program=code/run.sh"]).job.script == str(beside)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("tool", "tool: there is no such program in PATH", "did you mean ./tool?"),
        ("", "there is no such program in PATH", "is looked for in PATH"),
        ("./gone", "./gone: there is no such file", "check the path"),
        ("./plain.py", "./plain.py is not executable", "chmod +x ./plain.py"),
    ],
    ids=repr,
)
def test_what_cannot_be_executed_is_refused(write, name, message, hint):
    write("tool")
    write("plain.py", "print(1)", 0o644)
    with pytest.raises(JobError) as error:
        load_job(name, kind="program")
    assert message in error.value.message
    assert hint in error.value.hint


def test_a_path_is_a_script_and_a_name_is_the_job_even_where_a_script_is_called_so(write):
    write("ddp", "print(1)", 0o644)
    write("tool", "print(1)", 0o644)
    kinds = {name: load_job(name).job.workload for name in ("ddp", "./ddp", "tool")}
    assert kinds == {"ddp": "train", "./ddp": "script", "tool": "script"}
