"""Commands of schedulers that do not answer: they are waited for, and that is said."""

import pytest

from hpcdist.machine import command
from hpcdist.machine.command import CommandTimeoutError, Daemon, announce_waits, call_command

SILENT = ["sleep", "60"]


@pytest.fixture
def told(monkeypatch):
    """What somebody who looks on is told."""
    monkeypatch.setattr(command, "_announced", set())
    monkeypatch.setattr(command, "_listeners", [])
    monkeypatch.setattr(command, "_ANNOUNCED_S", 0.1)
    monkeypatch.setattr(command, "_NEXT_TIMEOUT_S", 0.02)
    lines = []
    announce_waits(lines.append)
    return lines


@pytest.fixture
def limits(monkeypatch):
    """The limits of the calls, which are carried out."""
    found = []

    def call(argv, *, timeout_s, **options):
        found.append(timeout_s)
        return call_command(argv, timeout_s=timeout_s, **options)

    monkeypatch.setattr(command, "call_command", call)
    return found


def test_a_command_that_does_not_answer_is_told_once_while_it_is_waited_for(told):
    for _ in range(2):
        with pytest.raises(CommandTimeoutError, match="sleep did not answer within"):
            call_command(SILENT, timeout_s=0.2)
    assert told == ["sleep does not answer yet; it is waited for 0.2 s"]


def test_a_command_that_answers_late_has_its_input_and_its_answer(told):
    done = call_command(["sh", "-c", "sleep 0.2; cat; exit 3"], timeout_s=60.0, text="read\n")
    assert (done.returncode, done.stdout) == (3, "read\n")
    assert len(told) == 1


@pytest.mark.usefixtures("told")
def test_a_silent_daemon_is_not_waited_for_as_long_again_until_it_answers(limits):
    daemon = Daemon()
    for _ in range(2):
        with pytest.raises(CommandTimeoutError):
            daemon.call(SILENT, timeout_s=0.05)
    with pytest.raises(CommandTimeoutError):
        daemon.call(SILENT, timeout_s=0.04, is_question=False)
    assert limits == [0.05, 0.02, 0.04]
    daemon.call(["true"], timeout_s=60.0, is_question=False)
    daemon.call(["true"], timeout_s=60.0)
    assert limits[3:] == [60.0, 60.0]


def test_a_silent_daemon_is_waited_for_again_after_a_minute(told, limits, monkeypatch):
    monkeypatch.setattr(command, "_SILENT_S", 0.0)
    daemon = Daemon()
    for _ in range(2):
        with pytest.raises(CommandTimeoutError):
            daemon.call(SILENT, timeout_s=0.05)
    assert limits == [0.05, 0.05]
    assert told == ["sleep did not answer within 0.05 s"]
