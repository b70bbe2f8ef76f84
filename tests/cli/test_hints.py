"""The commands that hpcdist prints work as they are, where the user stands."""

import re

import pytest

CPU = ("--set", "launch.device=cpu", "--gpus", "1")


def printed(done):
    """Return the commands about a run that were printed, each as its words."""
    text = re.sub(r"\n +(?!hpcdist)", " ", done.stdout + done.stderr)  # long lines go on in others
    return [words.split() for words in re.findall(r"hpcdist ((?:[a-z-]+ ?)+[\w./-]*)", text)]


@pytest.mark.parametrize("options", [(), ("--runs", "else/where")], ids=["usual", "named"])
def test_printed_commands_work_as_they_are_where_the_user_stands(hpcdist, options):
    is_usual = not options
    hpcdist.write("fails.py", "import sys; sys.exit(3)\n")
    failed = hpcdist("submit", "fails.py", "--local", *CPU, *options)
    assert failed.returncode == 1, failed.stderr
    explained = hpcdist("explain", "last", *options)
    resumed = hpcdist("resume", "last", "--detach", *options)
    lists = [hpcdist(verb, *options) for verb in ("runs", "status", "summary")]
    assert "hpcdist summary --" not in lists[2].stdout
    commands = [*printed(explained), *printed(resumed), *printed(lists[0])]
    assert {words[0] for words in commands} == {"logs", "status", "cancel"}
    for words in commands:
        done = hpcdist(*words)
        assert done.returncode == 0, (words, done.stderr)
        assert is_usual == ("/" not in words[-1])  # the shortest name that does
