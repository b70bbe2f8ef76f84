"""The summary of the job dataload, from events of known content."""

import io

import pytest
from rich.console import Console

from hpcdist.summary import print_summary, summarize, to_json


def loading(workers, time_ms, *, node=0, transform="none", **fields):
    return {
        "event": "loading",
        "time_s": 0.0,
        "setting": {"batch_size": 64, "workers": workers, "transform": transform},
        "node": node,
        "host": f"n{node}",
        "ranks": 1,
        "cpus": 2,
        "repeats": 5,
        "batches": 100,
        "mean_time_s": time_ms / 1e3,
        "sd_time_s": 0.5e-3,
        "min_time_s": time_ms / 1e3,
        "images_per_s": 64 / time_ms * 1e3,
        "start_time_s": 0.25,
        "first_time_s": 2 * time_ms / 1e3,
        "first_files": "cold",
        "parts_s": {"read": 2e-5, "decode": 3e-4, "transform": 0.0, "collate": 1e-5},
        "worker_bytes": 123_000_000 if workers else None,
        **fields,
    }


@pytest.fixture
def summary_of(make_run, events):
    def summarized(*written):
        run = make_run("dataload-20260101-120000-aaaa", job="dataload")
        events.write(run, 0, [events.start(0, world_size=1), *written, events.end()])
        return summarize([run], {})

    return summarized


def lines(summary):
    file = io.StringIO()
    print_summary(summary, Console(file=file, width=200))
    return [" ".join(line.split()) for line in file.getvalue().splitlines()]


def test_loading_is_told_by_workers_the_conclusion_first(summary_of):
    printed = lines(summary_of(loading(0, 60.0), loading(2, 33.0)))
    best = "dataload: Best with 2 workers: 1,939 ± 36 images/s with transform none."
    assert printed[0] == best
    assert printed[1] == ""
    assert "none 0 60.0 ± 0.6 1,067 250 120.0 -" in printed
    assert "none 2 33.0 ± 0.6 1,939 250 66.0 123" in printed
    assert (
        "#1: loading by workers, mean ± 95 % interval over passes; first pass: files from storage"
        in printed
    )
    assert "none 2 20 300 0 10 - 330" in printed
    table = printed.index("#1: work per image (µs)")
    line = "#1: With 2 workers 33 ms per batch of 64, 1.82 ("
    assert next(n for n, text in enumerate(printed) if text.startswith(line)) > table


def test_words_stand_left_and_numbers_below_each_other(summary_of):
    summary = summary_of(
        loading(0, 768.04, sd_time_s=0.689), loading(2, 93.0, transform="light", sd_time_s=0.0253)
    )
    file = io.StringIO()
    print_summary(summary, Console(file=file, width=200))
    rows = [line for line in file.getvalue().splitlines() if "±" in line and line[0] in "nl"]
    assert [row[:39] for row in rows] == [
        "none             0   768.0 ± 855.5     ",
        "light            2     93.0 ± 31.4     ",
    ]


def test_a_later_event_of_the_same_way_replaces_the_earlier(summary_of):
    summary = summary_of(loading(2, 40.0, repeats=3), loading(2, 33.0), loading(2, 66.0, node=1))
    (told,) = to_json(summary)
    cells = told["loading"]["cells"]
    assert [(cell["node"], cell["repeats"]) for cell in cells] == [(0, 5), (1, 5)]
    assert [cell["images_per_s"] for cell in cells] == pytest.approx([1939.4, 969.7], abs=0.1)
    assert "none 2 66.0 ± 0.6 970 250 132.0 123" in " ".join(lines(summary))
    assert any(line.startswith("1 n1 none 2") for line in lines(summary))


def test_training_steps_are_shown_and_compared(summary_of):
    step = {
        "event": "model_step",
        "time_s": 0.0,
        "batch_size": 64,
        "mean_time_s": 0.02,
        "sd_time_s": 0.001,
        "repeats": 20,
        "model": "resnet18",
    }
    summary = summary_of(step, loading(2, 33.0))
    assert "resnet18 64 20.0 ± 1.0 ms" in lines(summary)
    assert to_json(summary)[0]["loading"]["steps"][0]["model"] == "resnet18"
    assert "the model waits 39 % of the time." in " ".join(lines(summary))


def test_batch_sizes_that_vary_have_a_column(summary_of):
    small = loading(2, 40.0)
    small["setting"]["batch_size"] = 8
    headers = lines(summary_of(loading(2, 33.0), small))
    assert any("transform size workers" in line for line in headers)


def test_damaged_events_are_counted_and_left_out(summary_of):
    summary = summary_of(loading(2, 33.0), loading(4, 33.0, mean_time_s=0.0), loading(-1, 33.0))
    assert len(to_json(summary)[0]["loading"]["cells"]) == 1
    assert "2 events skipped" in " ".join(summary.skipped)


def test_the_threads_of_rank_and_workers_are_named(summary_of):
    printed = lines(summary_of(loading(0, 60.0, threads=1), loading(2, 33.0, threads=1)))
    said = "#1: Without workers the rank has 1 thread (dataload.threads), as each worker has."
    assert said in printed
    assert "none 0 60.0 ± 0.6 1,067 250 120.0 -" in printed


def test_threads_have_a_column_where_the_rank_has_others_than_workers(summary_of):
    printed = lines(summary_of(loading(0, 60.0, threads=4), loading(2, 33.0, threads=1)))
    assert "none 0 4 60.0 ± 0.6 1,067 250 120.0 -" in printed
    assert "none 2 1 33.0 ± 0.6 1,939 250 66.0 123" in printed
    assert (
        "#1: Without workers the rank has 4 threads (dataload.threads), each worker 1: part of the "
        "difference may be theirs."
    ) in printed
