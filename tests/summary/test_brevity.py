"""What the terminal shows unless every table is asked for: a page, with each figure once."""

from __future__ import annotations

import io
import re

import pytest

from hpcdist.job.goal import Goal
from hpcdist.runs.verdict import Verdict
from hpcdist.summary import print_summary, summarize
from hpcdist.summary.report.report import make_report
from hpcdist.summary.report.text import make_console, to_markdown

FAILED = Verdict(kind="signal", state="failed", message="rank 0 was killed", exit_code_of_run=1)


@pytest.fixture
def add_size(make_run, events):
    """Makes a run of some GPUs, whose steps wait longer the more there are."""

    def add(gpus, *, scale=1.0, name="", **options):
        run = make_run(f"on-{gpus}{name}", gpus=gpus, **options)
        wait_s = 0.02 * (gpus - 1) / gpus  # as a ring reduces
        phases = {"data_wait": [0.001] * 10, "exposed_communication": [wait_s] * 10}
        for rank in range(gpus):
            windows = [
                events.window(
                    step=10 * index,
                    times_s=[scale * (0.1 + wait_s)] * 10,
                    samples=100,
                    phases_s=phases,
                )
                for index in range(1, 6)
            ]
            tested = {"event": "evaluate", "time_s": 1.0, "loss": 0.1, "accuracy": 0.97, "step": 50}
            start = events.start(rank, world_size=gpus, device="cuda:0")
            events.write(run, rank, [start, *windows, tested, events.end()])
        return run

    return add


def printed(runs, **options):
    file = io.StringIO()
    goal = options.pop("goal", None)
    print_summary(summarize(runs, {}, goal=goal), make_console(file), **options)
    return file.getvalue()


def test_each_speedup_stands_once_in_the_table_of_sizes(add_size):
    runs = [add_size(gpus) for gpus in (1, 2, 4)]
    text = printed(runs)
    assert len(text.splitlines()) < 45
    assert len(re.findall(r"\b1\.82\b", text)) == 1
    assert "Weak scaling" in text
    assert text.count("Forecast: 8 GPUs") == 1
    sizes, table = text.split("Speed of all ranks")
    assert re.search(r"1 x 2 +1 .* 1\.82 ", sizes)
    assert "speed-" not in table


def test_the_time_to_an_accuracy_is_shown_where_it_is_asked_for(add_size):
    runs = [add_size(1), add_size(2)]
    goal = Goal("accuracy", 0.97)
    assert "test accuracy" not in printed(runs)
    assert "the goal is 97.0 % test accuracy" in printed(runs, goal=goal)
    assert "the goal is 97.0 % test accuracy" in printed(runs[:1], goal=goal)


def test_of_long_tables_the_terminal_has_the_first_rows(add_size):
    runs = [add_size(1, name=f"-{number:02}") for number in range(45)]
    text = printed(runs)
    assert len(re.findall(r"^ *\d+ +(on-1\S+) ", text, re.MULTILINE)) == 40
    assert "... and 5 rows more: --csv and --html have all" in text
    assert "on-1-44" in to_markdown(make_report(summarize(runs, {})))


def test_a_single_failed_run_is_told_once(add_size):
    text = printed([add_size(1, verdict=FAILED)])
    assert text.startswith("ddp: no run is done (1 failed). The newest run: rank 0 was killed.\n")
    assert text.count("was killed") == 1
