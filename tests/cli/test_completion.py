"""What a shell offers when TAB is pressed, asked as the shells ask, and in real shells."""

import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
from terminals import Terminal

from hpcdist.cli.completion import VARIABLE
from hpcdist.cli.main import main


@pytest.fixture
def offered(tmp_path, monkeypatch, capfd):
    """Gives what is offered for a line, and asserts that nothing else is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def offer(line):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        monkeypatch.setenv(VARIABLE, "bash_complete")
        code = main([])
        out, err = capfd.readouterr()
        assert not err
        assert code == 0 or not out
        return [item.split(",", 1)[1] for item in out.splitlines() if item]

    return offer


def test_jobs_keys_and_clusters_are_offered(offered, tmp_path):
    evil = "'$(touch x)'"  # a shell would act on it
    (tmp_path / "hpcdist.yaml").write_text(f"clusters: {{gpu: {{}}, cpu: {{}}, {evil}: {{}}}}\n")
    assert offered("hpcdist su") == ["submit", "summary"]
    assert "ddp" in offered("hpcdist submit dd")
    assert "train." in offered("hpcdist submit ddp --set ")
    assert offered("hpcdist submit ddp --set train.opt") == ["train.optimizer=adamw"]
    assert offered("hpcdist submit ddp --cluster ") == ["gpu", "cpu"]
    assert offered("hpcdist cluster show g") == ["gpu"]
    assert "train.accumulate" in offered("hpcdist explain train.accu")


def test_runs_are_offered_the_newest_first_and_files_by_the_shell(offered, tmp_path):
    names = ["ddp-20260101-120000-aaaa", "other-20260102-120000-bbbb"]
    for name in (*names, "no-run"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert offered("hpcdist status ") == ["last", *reversed(names)]
    assert offered("hpcdist submit ddp --after o") == [names[1]]
    assert offered("hpcdist submit no") == [""]  # which leaves it to bash


def test_a_line_with_mistakes_is_answered_without_an_error(offered, tmp_path):
    (tmp_path / "hpcdist.yaml").write_text("clusters: [\n")
    for line in ("hpcdist bogus x", "hpcdist submit gone --set x.y=", "hpcdist submit --cluster "):
        offered(line)


def test_bash_completes_and_executes_no_name_of_a_file(tmp_path):
    program = tmp_path / "bin" / "hpcdist"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcdist "$@"\n')
    program.chmod(0o755)
    folder = tmp_path / "unpacked"
    folder.mkdir()
    (folder / "b$(touch hacked).py").write_text("")
    path = f"{program.parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb"}
    start = partial(subprocess.Popen, ["bash", "--norc", "-i"], cwd=folder, env=environment)
    bash = Terminal(SimpleNamespace(start=start), rows=40)
    bash.type(b"source <(hpcdist completion bash); echo rea''dy\n")
    bash.wait_for("ready\r\n")
    bash.type(b'hpcdist submit dd\t--no-such-option "b\t\n"\n')
    bash.wait_for("o such option")
    bash.process.kill()
    bash.finish()
    assert "submit ddp " in bash.shown.replace("\a", "")
    assert not (folder / "hacked").exists()
