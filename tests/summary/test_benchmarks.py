"""The summaries of benchmarks, from events of known content."""

import pytest
from summary_text import printed

from hpcdist.summary import summarize, to_json

TABLE = {
    "event": "table",
    "name": "loading",
    "caption": "loading faces by workers",
    "time": "time per batch",
    "rate": "images_per_s",
    "x": "workers",
    "parts_of": "image",
}
FINDINGS = {
    "event": "findings",
    "conclusions": ["Use 2 workers (data.workers=2): 1,939 ± 36 images/s."],
    "details": ["A batch of 64 takes 33 ms with 2 workers."],
}


def loading(workers, time_ms, **fields):
    return {
        "event": "cell",
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
        run = make_run(f"{job}-1", job=job)
        timed = [event | {"time_s": 0.0} for event in written]
        events.write(run, 0, [events.start(0, world_size=1), *timed, events.end()])
        return summarize([run], {})

    return summarized


def test_the_answer_stands_first_then_the_tables_then_the_details(summary_of):
    text = printed(summary_of(TABLE, loading(0, 60.0), loading(2, 33.0), FINDINGS))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "dataload: Use 2 workers (data.workers=2): 1,939 ± 36 images/s."
    wanted = [
        "#1: loading faces by workers (5 times)",
        "2 33.0 ± 0.6 1,939 123",
        "#1: work per image (µs)",
        "#1: A batch of 64 takes 33 ms with 2 workers.",
    ]
    assert [line for line in lines if line in wanted] == wanted
    assert not any("samples/s" in line or "no steps" in line for line in lines)


def test_later_cells_replace_earlier_damaged_ones_are_left_out_and_killed_runs_have_some(
    summary_of,
):
    odd = [loading(4, 33.0, mean_time_s=0.0), loading(-1, 33.0), loading(8, 33.0, keys=[1])]
    killed = summary_of(TABLE, loading(2, 40.0, repeats=3), loading(2, 33.0), *odd)
    (value,) = to_json(killed)
    assert value["benchmark"]["conclusions"] == []
    (table,) = value["benchmark"]["tables"]
    assert [(cell["keys"]["workers"], cell["repeats"]) for cell in table["cells"]] == [(2, 5)]
    assert "3 events skipped" in " ".join(killed.skipped)
    check = {"event": "collective", "group_time_s": 1.0, "all_reduce_time_s": 0.1}
    assert to_json(summary_of(check, job="check"))[0]["benchmark"] is None
