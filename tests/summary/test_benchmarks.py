"""The summaries of benchmarks, from events of known content."""

import io

import pytest
from rich.console import Console

from hpcdist.summary import print_summary, summarize, to_json

TABLE = {
    "event": "table",
    "time_s": 0.0,
    "name": "loading",
    "caption": "loading faces by workers",
    "time": "time per batch",
    "rate": "images_per_s",
    "x": "workers",
    "parts_of": "image",
}
FINDINGS = {
    "event": "findings",
    "time_s": 0.0,
    "conclusions": ["Use 2 workers (data.workers=2): 1,939 ± 36 images/s."],
    "details": ["A batch of 64 takes 33 ms with 2 workers."],
}


def loading(workers, time_ms, **fields):
    return {
        "event": "cell",
        "time_s": 0.0,
        "table": "loading",
        "keys": {"transform": "none", "batch_size": 64, "workers": workers},
        "repeats": 5,
        "mean_time_s": time_ms / 1e3,
        "sd_time_s": 0.5e-3,
        "rate": 64 / time_ms * 1e3,
        "more": {"worker_bytes": 123e6} if workers else {},
        "parts_s": {"read": 2e-5, "decode": 3e-4},
        **fields,
    }


@pytest.fixture
def summary_of(make_run, events):
    def summarized(*written, job="dataload"):
        run = make_run(f"{job}-20260101-120000-aaaa", job=job)
        events.write(run, 0, [events.start(0, world_size=1), *written, events.end()])
        return summarize([run], {})

    return summarized


def lines(summary):
    file = io.StringIO()
    print_summary(summary, Console(file=file, width=200))
    return [" ".join(line.split()) for line in file.getvalue().splitlines()]


def test_the_answer_stands_first_then_the_tables_then_the_details(summary_of):
    printed = lines(summary_of(TABLE, loading(0, 60.0), loading(2, 33.0), FINDINGS))
    assert printed[0] == "dataload: Use 2 workers (data.workers=2): 1,939 ± 36 images/s."
    table = printed.index("#1: loading faces by workers (5 times)")
    assert "0 60.0 ± 0.6 1,067 -" in printed
    assert "2 33.0 ± 0.6 1,939 123" in printed
    parts = printed.index("#1: work per image (µs)")
    assert "2 20 300" in printed
    details = printed.index("#1: A batch of 64 takes 33 ms with 2 workers.")
    assert table < parts < details
    assert not any("samples/s" in line or "no steps" in line for line in printed)


def test_what_was_measured_is_in_the_json_and_a_later_cell_replaces_an_earlier(summary_of):
    found = summary_of(TABLE, loading(2, 40.0, repeats=3), loading(2, 33.0), FINDINGS)
    told = to_json(found)[0]["benchmark"]
    (table,) = told["tables"]
    assert [(cell["keys"]["workers"], cell["repeats"]) for cell in table["cells"]] == [(2, 5)]
    assert told["conclusions"] == FINDINGS["conclusions"]
    assert to_json(summary_of(job="other"))[0]["benchmark"] is None


def test_a_benchmark_that_was_killed_shows_what_it_has(summary_of):
    (told,) = to_json(summary_of(TABLE, loading(2, 33.0)))
    assert (told["benchmark"]["conclusions"], len(told["benchmark"]["tables"])) == ([], 1)
    without_table = lines(summary_of(loading(2, 33.0), job="other"))
    assert any(line.startswith("none 64 2 33.0 ± 0.6 ") for line in without_table)


def test_damaged_events_are_counted_and_left_out(summary_of):
    odd = [loading(4, 33.0, mean_time_s=0.0), loading(-1, 33.0), loading(8, 33.0, keys=[1])]
    summary = summary_of(TABLE, loading(2, 33.0), *odd)
    assert len(to_json(summary)[0]["benchmark"]["tables"][0]["cells"]) == 1
    assert "3 events skipped" in " ".join(summary.skipped)


def test_the_check_job_alone_shows_no_table(summary_of):
    check = {"event": "collective", "time_s": 0.0, "group_time_s": 1.0, "all_reduce_time_s": 0.1}
    summary = summary_of(check, job="check")
    assert to_json(summary)[0]["benchmark"] is None
    assert not summary.skipped
