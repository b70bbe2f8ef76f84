"""Figures that a run leaves beside it at its end count as long as they are those of its events."""

import os

import pytest

from hpcdist import entry
from hpcdist.base import files
from hpcdist.summary import search_runs, summarize, to_json
from hpcdist.summary.measuring import keep_figures


@pytest.fixture
def trained(make_run, events):
    """A run of two ranks that has ended."""
    run = make_run("trained", gpus=2)
    for rank in range(2):
        start = events.start(rank, world_size=2)
        events.write(run, rank, [start, *events.steady([100.0 + rank] * 9)])
    return run


@pytest.fixture
def opened(monkeypatch):
    """Names of the event files that were opened."""
    names = []
    opens = files.open_regular

    def open_regular(path, **options):
        if str(path).endswith(".jsonl"):
            names.append(os.path.basename(path))
        return opens(path, **options)

    monkeypatch.setattr("hpcdist.base.files.open_regular", open_regular)
    return names


@pytest.fixture
def read(trained):
    """Return the figures as a summary has them that may use those that are kept."""

    def summary():
        return to_json(summarize(search_runs(trained.path.parent).runs, {}, uses_kept=True))

    return summary


def test_the_first_summary_of_a_run_whose_figures_are_kept_reads_no_events(trained, read, opened):
    plain = read()
    assert len(opened) == 2
    keep_figures(trained)
    opened.clear()
    assert read() == plain
    assert opened == []
    assert to_json(summarize([trained], {})) == plain  # all is read unless it may be used
    assert len(opened) == 2


def change_events(run):
    with run.event_file(0).open("a") as file:
        file.write('{"event": "note", "message": "late"}\n')


def tear(run):
    run.figures_file.write_bytes(run.figures_file.read_bytes()[:-1])


def let_others_write(run):
    run.figures_file.chmod(0o666)


def be_of_another_run(run):
    os.utime(run.verdict_file)


@pytest.mark.parametrize("change", [change_events, tear, let_others_write, be_of_another_run])
def test_kept_figures_count_only_as_long_as_they_are_those_of_the_run(
    trained, read, opened, change
):
    keep_figures(trained)
    change(trained)
    opened.clear()
    read()
    assert len(opened) == 2


def test_figures_of_other_code_are_not_used(trained, read, opened, monkeypatch):
    keep_figures(trained)
    monkeypatch.setattr("hpcdist.summary.measuring.code_version", lambda: "another")
    opened.clear()
    read()
    assert len(opened) == 2


def test_a_run_without_a_verdict_keeps_nothing(trained):
    trained.verdict_file.unlink()
    keep_figures(trained)
    entry.keep_figures(trained)
    assert not trained.figures_file.exists()


@pytest.mark.parametrize(
    ("bound", "value", "is_kept"),
    [("_LEAST_BYTES", 1, True), ("_LEAST_BYTES", 10**6, False), ("_MOST_FILES", 1, False)],
)
def test_the_end_of_a_run_keeps_figures_that_are_worth_it_and_delays_no_thousand_nodes(
    trained, monkeypatch, bound, value, is_kept
):
    monkeypatch.setattr(entry, "_LEAST_BYTES", 1)
    monkeypatch.setattr(entry, bound, value)
    entry.keep_figures(trained)
    assert trained.figures_file.exists() == is_kept


def test_a_disk_that_is_full_ends_no_run(trained, monkeypatch):
    monkeypatch.setattr(entry, "_LEAST_BYTES", 1)

    def fail(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpcdist.base.files.write_whole", fail)
    entry.keep_figures(trained)
    assert not trained.figures_file.exists()
