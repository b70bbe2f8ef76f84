"""The summary as CSV and Markdown, written where the user says."""

from __future__ import annotations

import csv
import io
import os

import pytest
from rank_ends import rank_end

from hpcdist.runs.verdict import Verdict
from hpcdist.summary import summarize, to_json
from hpcdist.summary.report.report import make_report
from hpcdist.summary.report.text import to_csv, to_markdown
from hpcdist.summary.writing import write_output

FAILED = Verdict(
    kind="exception",
    state="failed",
    message="=HYPERLINK(1)\n| <b>x</b> | `y` $z$",
    exit_code_of_run=1,
    first=rank_end(0),
)


@pytest.fixture
def summary(make_run, record_run, events):
    made = events.phased({"data_wait": 0.02, "my.phase": 0.01, "other": 0.07})
    runs = [record_run(f"ddp-{gpus}", *[made] * gpus) for gpus in (1, 2)]
    return summarize([*runs, make_run("ddp-failed", verdict=FAILED)], {})


def lines(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_one_line_per_run_with_the_figures_of_the_json(summary):
    found = lines(to_csv(summary))
    assert [line["run"] for line in found] == ["ddp-1", "ddp-2", "ddp-failed"]
    for line, run in zip(found, to_json(summary), strict=True):
        for column in ("samples_per_s.mean", "step_time_s.p95", "phase_s.my.phase"):
            head, _, rest = column.partition(".")
            expected = "" if run[head] is None else str(run[head][rest])
            assert line[column] == expected
    assert float(found[1]["speedup"]) == pytest.approx(2.0)
    # No name is taken for a formula, and each run is in one line.
    assert found[2]["verdict.message"] == "'=HYPERLINK(1) | <b>x</b> | `y` $z$"
    assert len(to_csv(summary).splitlines()) == 4
    assert "usage" not in " ".join(found[0])  # which no run has


def test_markdown_has_whole_tables_with_units_after_the_conclusion(summary):
    text = to_markdown(make_report(summary))
    assert text.index("2.00 times as fast") < text.index("samples/s")
    assert "step time (ms)" in text
    tables = [block for block in text.split("\n\n") if block.startswith("| ")]
    for table in tables:
        assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1
    # What comes from runs is no markup.
    assert "<b>" not in text.replace("\\<b\\>", "")
    assert "\\| \\<b\\>x\\</b\\> \\| \\`y\\` \\$z\\$" in text


def test_a_link_stays_and_a_pipe_is_written_to_and_not_replaced(tmp_path):
    target, link, pipe = (tmp_path / name for name in ("real.csv", "link.csv", "pipe"))
    link.symlink_to(target)
    write_output(link, "a\n", what="the CSV")
    assert link.is_symlink()
    assert target.read_text() == "a\n"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_output(pipe, "a\n", what="the CSV")
    assert os.read(end, 9) == b"a\n"
    os.close(end)
    assert pipe.is_fifo()
