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


def test_the_last_line_names_what_is_left_out_and_details_and_markdown_have_it(add_size):
    runs = [add_size(1), add_size(2)]
    last = printed(runs).split("Not shown: ")[1]
    assert " ".join(last.split()) == ("phases of a step. With --details, all is shown.")
    everything = printed(runs, details=True)
    for text in (everything, to_markdown(make_report(summarize(runs, {})))):
        assert "Mean time of a step by phase" in text
        assert "Not shown" not in text


def test_the_time_to_an_accuracy_is_shown_where_it_is_asked_for(add_size):
    runs = [add_size(1), add_size(2)]
    goal = Goal("accuracy", 0.97)
    assert "test accuracy" not in printed(runs)
    assert "Time to 97.0 % test accuracy" in printed(runs, goal=goal)
    assert "Time to 97.0 % test accuracy" in printed(runs[:1], goal=goal)


def test_of_many_runs_those_that_failed_are_listed_first(add_size):
    runs = [add_size(1, name=f"-{number:02}") for number in range(30)]
    runs.append(add_size(1, name="-bad", verdict=FAILED))
    text = printed(runs)
    listed = re.findall(r"^ *\d+ +(on-1\S+) ", text, re.MULTILINE)
    assert len(listed) == 20
    assert "on-1-bad" in listed
    assert "#31: rank 0 was killed" in text
    assert "some runs of ddp" in text.split("Not shown: ")[1]
    assert len(re.findall(r"on-1-\d\d ", printed(runs, details=True))) == 30


def test_phases_stand_where_nothing_else_says_where_the_time_goes(add_size):
    going = printed([add_size(2, verdict=None)])
    assert "Mean time of a step by phase" in going
    assert "Mean time of a step by phase" not in printed([add_size(2, name="-done")])


def test_a_single_failed_run_is_told_once(add_size):
    text = printed([add_size(1, verdict=FAILED)])
    assert text.startswith("ddp: the run failed: rank 0 was killed.\n")
    assert text.count("was killed") == 1
