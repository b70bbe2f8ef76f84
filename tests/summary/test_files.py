"""The summary as CSV and Markdown, written where the user says."""

from __future__ import annotations

import csv
import io
import os
import threading

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
def summary(make_run, events):
    for gpus in (1, 2):
        run = make_run(f"ddp-{gpus}", gpus=gpus)
        for rank in range(gpus):
            phases = {"data_wait": [0.02] * 10, "my.phase": [0.01] * 10}
            windows = [
                events.window(step=10 * n, times_s=[0.1] * 10, samples=100, phases_s=phases)
                for n in (1, 2, 3)
            ]
            end = events.end(step=30, max_rss_bytes=2**20)
            events.write(run, rank, [events.start(rank, world_size=gpus), *windows, end])
    failed = make_run("ddp-failed", verdict=FAILED)
    runs = [*(type(failed)(failed.path.parent / f"ddp-{gpus}") for gpus in (1, 2)), failed]
    return summarize(runs, {})


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
    assert len(tables) >= 3
    for table in tables:
        assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1
    # What comes from runs is no markup.
    assert "<b>" not in text.replace("\\<b\\>", "")
    assert "\\| \\<b\\>x\\</b\\> \\| \\`y\\` \\$z\\$" in text


def test_a_file_gets_the_mode_that_the_umask_says_and_a_link_stays(tmp_path):
    target = tmp_path / "real.csv"
    (tmp_path / "link.csv").symlink_to(target)
    before = os.umask(0o022)
    try:
        write_output(tmp_path / "link.csv", "a\n", what="the CSV")
    finally:
        os.umask(before)
    assert (tmp_path / "link.csv").is_symlink()
    assert target.read_text() == "a\n"
    assert target.stat().st_mode & 0o777 == 0o644


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_output(pipe, "a\n", what="the CSV")
    reader.join(10)
    assert read == ["a\n"]
    assert pipe.is_fifo()
