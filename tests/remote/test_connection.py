"""What the user reads where a host is not as it should be: a real sshd, without a cluster."""

import os
import stat
import subprocess
import sys

import pytest
from terminals import Terminal


@pytest.fixture
def call(login_node, tmp_path, monkeypatch, call_laptop):
    """Calls the command on a laptop; returns its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, ssh=login_node.ssh, **options):
        done = call_laptop(*arguments, ssh=ssh, **options)
        return done.returncode, done.stdout, done.stderr

    return call


def test_a_host_that_is_not_as_it_should_be_is_told_with_what_to_do(login_node, call):
    code, _, err = call("status", "--host", "login")
    assert code == 3
    assert "there is no hpcdist at login" in err
    assert "hint: install it there" in err
    code, _, err = call("status", "--host", "nowhere.invalid")
    assert code == 3
    assert "Could not resolve" in err
    assert "look at the name" in err
    for known in (False, True):
        login_node.stop()
        login_node.new_host_key(known=known)
        login_node.start()
        if not known:
            code, _, err = call("status", "--host", "login")
    assert code == 3
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in err
    assert "ssh does not reach login: Host key verification failed." in err
    assert "ssh-keygen -R" in err


def test_what_a_profile_prints_is_no_part_of_the_answer(login, call):
    login.profile("echo hello; echo hi >&2; head -c 100000 /dev/zero")
    code, out, err = call("runs", "--host", "login", "--json")
    assert (code, out) == (0, "[]\n")
    assert "hello" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("submit", "ddp", "--host", "login", "--local"), "--host and --local contradict"),
        (("submit", "ddp", "--host", "-oProxyCommand=x"), "must be HOST or HOST:FOLDER"),
        (("submit", "own.py", "--host", "login"), "in no git work tree"),
    ],
)
def test_wrong_input_is_told_before_anything_is_sent(call, tmp_path, words, said):
    (tmp_path / "own.py").write_text("")
    code, _, err = call(*words, ssh="false")
    assert code == 2
    assert said in err


def test_only_what_the_host_lacks_is_sent_whatever_its_name_and_lies_there_read_only(
    login, call, tmp_path
):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "large").write_bytes(os.urandom(3_000_000))
    (tmp_path / "link").symlink_to("train.py")
    odd = {"new\nline \"$(id)'", os.fsdecode(b"b\xff")}
    for name in odd:
        (tmp_path / name).write_text("")
    before = login.connections
    # Words arrive as they were typed.
    odd_words = ("--", "new\nline", "$(id) '!", b"a\xff", "--", "--host")
    words = ("render", "train.py", "--host", "login", "--scheduler", "slurm", *odd_words)
    code, _, err = call(*words)
    assert code == 0, err
    (tmp_path / "train.py").write_text("print(2)")
    code, out, err = call(*words)
    assert code == 0, err
    project = login.home / "hpcdist" / tmp_path.name
    there = project / ".tree-last"
    assert (there / "link").read_text() == "print(2)"
    assert odd <= set(os.listdir(there))
    assert stat.S_IMODE((there / "large").stat().st_mode) == 0o400
    assert (there / "large").stat().st_nlink == 2  # the tree before has it, too
    assert f"cd {project}/runs/RUN/code\n" in out  # its own copy, of the project's runs
    assert login.connections == before + 2


class OnLaptop:
    """Starts a command on the laptop."""

    def __init__(self, folder, ssh):
        self._settings = {"cwd": folder, "env": os.environ | {"HPCDIST_SSH": ssh}}

    def start(self, *arguments, **options):
        words = [sys.executable, "-m", "hpcdist", *arguments]
        return subprocess.Popen(words, **self._settings, **options)


def test_on_a_terminal_a_command_has_one_at_the_host(login, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal(OnLaptop(tmp_path, login.ssh), "logs", "gone", "--host", "login")
    assert terminal.finish() == 2
    assert "\x1b[31m" in terminal.shown  # as errors are on a terminal alone
    assert terminal.shown.count("error:") == 1
