"""What a shell offers when TAB is pressed, asked as the shells ask, and in real shells."""

import os
import subprocess
import sys

import pytest
from terminals import Terminal

from hpcdist.cli.completion import VARIABLE
from hpcdist.cli.main import main
from hpcdist.runs.run import Run

BREAKS = " \t\n\"'@><=;|&(:"


@pytest.fixture
def offered(tmp_path, monkeypatch, capfd):
    """Gives what is offered for a line, and asserts that nothing else is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COMP_WORDBREAKS", BREAKS)

    def offer(line, shell="bash"):
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv(VARIABLE, f"{shell}_complete")
        code = main([])
        out, err = capfd.readouterr()
        assert not err
        assert code == 0 or not out
        return [
            item.split(",", 1)[1] if shell == "bash" else item for item in out.splitlines() if item
        ]

    return offer


def test_jobs_keys_values_and_clusters_are_offered(offered, tmp_path):
    (tmp_path / "hpcdist.yaml").write_text("clusters: {gpu: {partition: a100}, cpu: {}}\n")
    assert offered("hpcdist su") == ["submit", "summary"]
    assert offered("hpcdist submit dd") == ["ddp"]
    assert "train." in offered("hpcdist submit ddp --set ")
    assert "train." not in offered("hpcdist submit check --set ")
    assert offered("hpcdist submit ddp --set train.opt") == ["train.optimizer="]
    # bash replaces what stands behind =, the others the whole word.
    assert offered("hpcdist submit ddp --set train.optimizer=s") == ["sgd"]
    assert offered("hpcdist submit ddp --set=train.static_graph=") == ["true", "false"]
    assert offered("hpcdist submit ddp --set train.optimizer=s", "fish") == ["train.optimizer=sgd"]
    assert offered("hpcdist submit ddp --set=launch.requeue=f", "fish") == [
        "--set=launch.requeue=false"
    ]
    assert "fashion_mnist" in offered("hpcdist submit ddp --set data.name=")
    assert offered("hpcdist submit ddp --cluster ") == ["gpu", "cpu"]
    assert offered("hpcdist submit ddp --partition ") == ["a100"]
    assert offered("hpcdist cluster show g") == ["gpu"]
    assert offered("hpcdist submit ddp --sweep 'nodes=1,2 train.opt") == [
        "nodes=1,2 train.optimizer="
    ]
    assert offered("hpcdist submit ddp --sweep train.precision=fp32,tf") == ["fp32,tf32"]
    assert offered("hpcdist submit ddp --scheduler p") == ["pbs"]
    assert offered("hpcdist explain train.accu") == ["train.accumulate"]
    assert "hang" in offered("hpcdist explain han")


def test_runs_the_newest_first_ranks_and_files_are_offered(offered, tmp_path):
    runs = tmp_path / "runs"
    for name in ("ddp-20260101-120000-aaaa", "other-20260102-120000-bbbb"):
        (runs / name / "logs").mkdir(parents=True)
    (runs / "no-run").mkdir()
    for rank in (0, 1):
        Run(runs / "ddp-20260101-120000-aaaa").log_file(rank).write_text("")
    assert offered("hpcdist status ") == [
        *("last", "other-20260102-120000-bbbb", "ddp-20260101-120000-aaaa")
    ]
    assert offered("hpcdist logs ddp-20260101-120000-aaaa --rank ") == ["0", "1"]
    assert offered("hpcdist submit ddp --after any:o") == ["other-20260102-120000-bbbb"]
    (tmp_path / "my train.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "bad\nname.py").write_text("")
    assert offered("hpcdist submit my") == ["my\\ train.py"]
    assert offered("hpcdist submit 'my") == ["my train.py"]
    (tmp_path / "my $1.py").write_text("")
    assert offered("hpcdist submit 'my") == ["my train.py"]
    (tmp_path / "my $1.py").unlink()
    assert offered("hpcdist submit no") == []
    assert offered("hpcdist summary --html no") == ["notes.txt"]
    assert "runs/" in offered("hpcdist submit ")


@pytest.mark.parametrize(
    "line",
    [
        *("hpcdist bogus x", "hpcdist submit ddp --bogus ", "hpcdist submit gone --set x.y="),
        *("hpcdist logs gone --rank ", "hpcdist submit ddp --cluster ", "", "hpcdist data x y z "),
    ],
)
def test_a_line_with_mistakes_is_answered_without_an_error(offered, tmp_path, line):
    (tmp_path / "hpcdist.yaml").write_text("clusters: [\n")
    offered(line)


def shell_environment(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "hpcdist"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcdist "$@"\n')
    program.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    path = f"{folder}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "TERM": "dumb", "PS1": "$ ", "XDG_DATA_HOME": ""}


class InShell:
    """Starts a shell in the place of the command."""

    def __init__(self, folder, environment):
        self._settings = {"cwd": folder, "env": os.environ | environment}

    def start(self, *arguments, **options):
        return subprocess.Popen(list(arguments), **self._settings, **options)


def test_bash_completes_after_install_which_can_be_repeated(tmp_path):
    environment = shell_environment(tmp_path)
    rc = tmp_path / "home/.bashrc"
    rc.write_text("PS1='$ '; alias ll='ls -l'")  # no line end
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "hpcdist", "completion", "bash", "--install"],
            env=os.environ | environment,
            check=True,
            capture_output=True,
            timeout=60,
        )
    assert rc.read_text().count("completion.bash") == 2  # one line, which names it twice
    assert rc.read_text().startswith("PS1='$ '; alias ll='ls -l'\n")
    bash = Terminal(InShell(tmp_path, environment), "bash", "-i", rows=40)
    bash.wait_for("$ ")
    bash.type(b"hpcdist submit dd\t--set train.opt\tsg\t--wait")
    bash.wait_for("submit ddp --set train.optimizer=sgd --wait")
    bash.type(b"\x15exit\n")
    bash.finish()


@pytest.mark.parametrize(
    ("quote", "name"),
    [('"', "b$(touch hacked).py"), ("'", "b'$(touch hacked)'.py"), ("", "b$(touch hacked).py")],
    ids=["double", "single", "none"],
)
def test_no_name_of_a_file_is_executed_by_bash(tmp_path, quote, name):
    environment = shell_environment(tmp_path)
    folder = tmp_path / "unpacked"
    folder.mkdir()
    (folder / name).write_text("")
    bash = Terminal(InShell(folder, environment), "bash", "--norc", "-i", rows=40)
    bash.type(b"source <(hpcdist completion bash); echo rea''dy\n")
    bash.wait_for("ready\r\n")
    bash.type(f"hpcdist submit --no-such-option {quote}b\t\n{quote}\n".encode())
    bash.wait_for("o such option")
    bash.process.kill()
    bash.finish()
    assert not (folder / "hacked").exists()


def test_a_line_is_not_added_to_a_file_that_it_would_break(tmp_path):
    environment = shell_environment(tmp_path)
    rc = tmp_path / "home/.bashrc"
    for content in ("cat <<END\n", "echo \\\n"):
        rc.write_text(content)
        done = subprocess.run(
            [sys.executable, "-m", "hpcdist", "completion", "bash", "--install"],
            env=os.environ | environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        kept = rc.read_text()
        assert kept == content or kept.startswith(f"{content}\n"), done.stdout
        assert subprocess.run(["bash", "-n", rc], timeout=30, check=False).returncode == 0
