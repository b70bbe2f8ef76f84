"""Scripts without a suffix, folders and programs in any language, as a user submits
them."""

import os

import hpcdist as package

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
