"""Output on a terminal of 80 columns, whose words are whole, and the progress of long work."""

import json
import sys

import pytest
from terminals import Terminal

from hpcdist.base import progress
from hpcdist.base.terminal_lines import TerminalLines
from hpcdist.cli.printing import print_columns


@pytest.fixture(autouse=True)
def _usual_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


def shown(hpcdist, *arguments, rows=24, code=0):
    terminal = Terminal(hpcdist, *arguments, rows=rows)
    assert terminal.finish() == code, terminal.shown
    return TerminalLines(styled=False).feed(terminal.shown.encode(), is_last=True)


@pytest.fixture
def runs(hpcdist):
    """A run that failed, with a long verdict, of a job with a long name."""
    name = "a-job-with-a-rather-long-name-20261123-010211-abcd"
    folder = hpcdist.folder / "runs" / name
    folder.mkdir(parents=True)
    job = {"name": "a-job", "resources": {"nodes": 2, "gpus": 4}}
    spec = {"version": 1, "id": name, "created_s": 1.7e9, "scheduler": "local", "job": job}
    verdict = {
        "kind": "exception",
        "state": "failed",
        "message": "rank 3 failed first: ValueError: " + "incomprehensible " * 12,
        "exit_code_of_run": 1,
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "submission.json").write_text(json.dumps({"scheduler": "local", "process": None}))
    (folder / "verdict.json").write_text(json.dumps(verdict))
    return hpcdist


def test_words_are_whole_in_80_columns(runs):
    for verb in ("runs", "status", "jobs", "summary"):
        lines = [line for line in shown(runs, verb) if "directory" not in line]
        assert max(map(len, lines)) <= 80, lines
        for line in lines:
            for word in line.replace("incomprehensible", "").split():
                assert not "incomprehensible".startswith(word.strip(".:;")) or len(word) < 3
    name = "a-job-with-a-rather-long-name-20261123-010211-abcd"
    assert any(name in line for line in shown(runs, "runs"))
    assert any(name in line for line in shown(runs, "summary"))


def test_long_work_is_shown_on_a_terminal_and_nowhere_else(capsys, monkeypatch):
    for name in ("_SHOWN_AFTER_S", "_BETWEEN_S"):
        monkeypatch.setattr(progress, name, 0.0)
    monkeypatch.setattr(progress, "_is_wanted", False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(progress.track([1, 2, 3], "drawing")) == [1, 2, 3]
    progress.show()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    assert list(progress.track([1, 2, 3], "drawing")) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for number in progress.track(iter([1, 2, 3]), "drawing", total=3):
        assert number < 3 or "drawing: 2 of 3" in capsys.readouterr().err
    # What is left in the middle is taken away before an error is printed.
    left = progress.track([1, 2, 3], "drawing")
    assert [next(left), next(left)] == [1, 2]
    progress.StatusLine.clear()
    out, err = capsys.readouterr()
    assert not out
    assert "drawing" in err


def test_columns_elsewhere_than_on_a_terminal_have_no_limit(capsys):
    print_columns(("A", "B"), [("x" * 90, "y z " * 90)])
    assert len(capsys.readouterr().out.splitlines()) == 2
