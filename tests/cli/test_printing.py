"""Output on a terminal of 80 columns, whose words are whole."""

from terminals import Terminal

from hpcdist.base import files
from hpcdist.base.terminal_lines import TerminalLines
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict

NAME = "a-job-with-a-rather-long-name-20261123-010211-abcd"


def test_words_are_whole_in_80_columns(hpcdist, monkeypatch):
    """Of a run that failed, with a long verdict, of a job with a long name."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    run = Run(hpcdist.folder / "runs" / NAME)
    run.path.parent.mkdir()
    run.make()
    job = {"name": "a-job", "resources": {"nodes": 2, "gpus": 4}}
    files.write_json(run.spec_file, {"id": NAME, "created_s": 1.7e9, "job": job})
    message = "rank 3 failed first: ValueError: " + "incomprehensible " * 12
    run.write_verdict(Verdict(kind="exception", state="failed", message=message))
    for verb in ("runs", "status", "summary"):
        terminal = Terminal(hpcdist, verb, rows=24)
        assert terminal.finish() == 0, terminal.shown
        shown = TerminalLines(styled=False).feed(terminal.shown.encode(), is_last=True)
        lines = [line for line in shown if "directory" not in line]
        assert any(NAME in line for line in shown)
        assert max(map(len, lines)) <= 80, lines
        for word in " ".join(lines).replace("incomprehensible", "").split():
            assert not "incomprehensible".startswith(word.strip(".:;")) or len(word) < 3
