"""Commands of schedulers that do not answer: they are waited for, and that is said."""

import pytest

from hpcdist.machine import command
from hpcdist.machine.command import CommandTimeoutError, announce_waits, call_command

SILENT = ["sleep", "60"]


@pytest.fixture
def told(monkeypatch):
    """What somebody who looks on is told."""
    monkeypatch.setattr(command, "_announced", set())
    monkeypatch.setattr(command, "_listeners", [])
    monkeypatch.setattr(command, "_ANNOUNCED_S", 0.1)
    lines = []
    announce_waits(lines.append)
    return lines


def test_a_command_that_does_not_answer_is_told_once_while_it_is_waited_for(told):
    for _ in range(2):
        with pytest.raises(CommandTimeoutError, match="sleep did not answer within"):
            call_command(SILENT, timeout_s=0.2)
    assert told == ["sleep does not answer yet; it is waited for 0.2 s"]
