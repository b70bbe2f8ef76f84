"""`hpcdist summary --against`: changes with known answers, and the exit code for CI."""

import io
import json
import math

import pytest
from msgspec import structs

from hpcdist.base.errors import UserError
from hpcdist.base.statistics import two_sided
from hpcdist.cli.main import main
from hpcdist.runs.verdict import Verdict
from hpcdist.summary import summarize
from hpcdist.summary.compare.against import check_comparison, compare_with
from hpcdist.summary.report.changes import conclusion, print_changes
from hpcdist.summary.report.text import make_console

FAILED = Verdict(kind="exit", state="failed", message="rank 0 left with 3", exit_code_of_run=1)


@pytest.fixture
def add(make_run, events):
    """Add runs of one job, a run for each rate; a list of rates is a run with such windows."""
    count = iter(range(1000))

    def add(folder, *rates, gpus=1, job="ddp", **options):
        made = []
        for rate in rates:
            run = make_run(f"{folder}/{job}-{next(count):03d}", gpus=gpus, job=job, **options)
            windows = rate if isinstance(rate, list) else [rate] * 4
            for rank in range(gpus):
                start = events.start(rank, world_size=gpus)
                events.write(run, rank, [start, *events.steady([one / gpus for one in windows])])
            made.append(run)
        return made

    return add


def compared(before, now, threshold=0.05):
    return compare_with(summarize(before, {}).runs, summarize(now, {}).runs, threshold=threshold)


def only_change(before, now, threshold=0.05):
    (change,) = compared(before, now, threshold).changes
    return change


def test_repeats_are_compared_by_welch(add):
    change = only_change(add("a", 98.0, 100.0, 102.0), add("b", 89.0, 90.0, 91.0))
    assert change.change == pytest.approx(-0.1)
    assert (change.over, change.outcome) == ("repeats", "slower")
    # Relative standard errors: 2 % and 1 / 90, each over the root of 3.
    squares = (0.02**2 / 3, (1 / 90) ** 2 / 3)
    freedom = sum(squares) ** 2 / sum(square**2 / 2 for square in squares)
    assert change.p == pytest.approx(two_sided(math.log(0.9) / math.sqrt(sum(squares)), freedom))
    assert change.interval.low < -0.1 < change.interval.high < 0


def test_many_changes_show_one_by_chance_no_more_often_than_a_single_one(add):
    """p is 0.03, and there are two of them, as for any of which one of ten would be found."""
    before, now = (98.0, 100.0, 102.0), (92.6, 94.6, 96.6)
    only = only_change(add("a", *before), add("b", *now), threshold=0.0)
    assert (only.outcome, only.p < 0.05) == ("slower", True)
    first = [*add("c", *before), *add("c", *before, job="other")]
    second = [*add("d", *now), *add("d", 99.0, 101.0, 102.0, job="other")]
    of_two, other = compared(first, second, threshold=0.0).changes
    assert of_two.p == pytest.approx(2 * only.p)
    assert of_two.outcome == other.outcome == "not distinguishable"
    assert of_two.interval.low < only.interval.low
    assert of_two.interval.high > 0


@pytest.mark.parametrize(
    ("rates", "threshold", "outcome"),
    [
        pytest.param((99.0, 101.0, 103.0), 0.05, "not distinguishable", id="noise"),
        pytest.param((60.0, 90.0, 120.0), 0.05, "not distinguishable", id="far, but uncertain"),
        pytest.param((89.0, 90.0, 91.0), 0.2, "within threshold", id="sure, but allowed"),
        pytest.param((89.0, 90.0, 91.0), 0.05, "slower", id="regression"),
        pytest.param((119.0, 120.0, 121.0), 0.05, "faster", id="progress"),
    ],
)
def test_only_a_loss_that_is_sure_and_large_is_a_regression(add, rates, threshold, outcome):
    found = compared(add("a", 98.0, 100.0, 102.0), add("b", *rates), threshold)
    assert found.changes[0].outcome == outcome
    assert found.regression is (outcome == "slower")


def test_a_single_run_is_held_against_the_spread_of_the_repeats(add):
    before = add("a", 98.0, 100.0, 102.0)
    change = only_change(before, add("b", 80.0))
    assert change.over == "repeats of one side"
    assert change.p == pytest.approx(two_sided(math.log(0.8) / (0.02 * math.sqrt(4 / 3)), 2))
    assert change.outcome == "slower"
    assert only_change(before, add("c", 93.0)).outcome == "not distinguishable"
    assert only_change(add("d", 80.0), before).outcome == "faster"


def test_single_runs_are_compared_by_their_windows(add):
    before = add("a", [50.0, 98.0, 100.0, 102.0, 100.0])  # the first is warm-up
    change = only_change(before, add("b", [50.0, 88.0, 90.0, 92.0, 90.0]))
    assert change.over == "windows"
    assert change.change == pytest.approx(-0.1, abs=2e-3)
    assert change.outcome == "slower"
    noisy = only_change(before, add("c", [50.0, 60.0, 120.0, 80.0, 120.0]))
    assert noisy.outcome == "not distinguishable"


def test_sizes_and_settings_are_matched_each_with_its_own(add):
    before = [
        *add("a", 100.0, 101.0),
        *add("a", 190.0, 191.0, gpus=2),
        *add("a", 50.0, 51.0, train={"batch_size": 8}),
        *add("a", 10.0, job="gone"),
    ]
    now = [
        *add("b", 100.0, 101.0, torch="3.0.0", train={"seed": 5}),
        *add("b", 90.0, 91.0, gpus=2),
        *add("b", 50.0, 51.0, train={"batch_size": 8}),
        *add("b", 10.0, job="new"),
    ]
    found = compared(before, now)
    outcomes = [(one.gpus_per_node, one.before.mean, one.outcome) for one in found.changes]
    assert outcomes == [
        (1, pytest.approx(100.5), "not distinguishable"),
        (1, pytest.approx(50.5), "not distinguishable"),
        (2, pytest.approx(190.5), "slower"),
    ]
    assert [one.same_settings for one in found.changes] == [True] * 3
    assert found.only_before == ["gone-006"]
    assert found.only_now == ["new-013"]


def test_a_job_whose_settings_changed_is_compared_and_that_is_told(add):
    before = add("a", 100.0, 101.0)
    change = only_change(before, add("b", 80.0, 81.0, train={"lr": 0.5}))
    assert not change.same_settings
    assert change.outcome == "slower"
    two = [*add("c", 80.0, train={"lr": 0.5}), *add("c", 70.0, train={"lr": 0.7})]
    assert compared(before, two).changes == []  # which of them is meant?


def test_runs_that_fail_now_are_a_regression(add):
    before = add("a", 100.0, 101.0)
    found = compared(before, add("b", 99.0, verdict=FAILED))
    assert (found.changes[0].outcome, found.regression) == ("failed", True)
    found = compared(before, [*add("c", 99.0, verdict=FAILED), *add("c", 100.0, 101.5)])
    assert not found.regression
    assert found.failed_now == found.only_now == ["ddp-003"]
    assert conclusion(found) == (
        "No regression: nothing is certain to be slower by more than 5 %. 1 run did not end well."
    )


def test_benchmarks_are_compared_cell_by_cell(add, make_run, events):
    def measured(name, rate, **fields):
        run = make_run(name, job="bench", gpus=2)
        table = {"event": "table", "time_s": 0.0, "name": "t", "rate": "bus_bytes_per_s"}
        cell = {"event": "cell", "table": "t", "time_s": 0.0, "rate": rate, **fields}
        made = [
            {**cell, "mean_time_s": 1e-3, "keys": {"size_bytes": size}} for size in (1024, 2**20)
        ]
        events.write(run, 0, [events.start(0, world_size=2), table, *made])
        return run

    before = [measured("a/1", 10e9), measured("a/2", 10.2e9)]
    now = [measured("b/1", 5e9), measured("b/2", 5.1e9)]
    found = compared(before, now)
    assert [(one.quantity, one.outcome) for one in found.changes] == [
        ("bus GB/s, size 1 KiB", "slower"),
        ("bus GB/s, size 1 MiB", "slower"),
    ]
    assert found.changes[0].before.mean == pytest.approx(10.1)
    spread = {"repeats": 5, "sd_time_s": 1e-5}
    found = compared([measured("c/1", 10e9, **spread)], [measured("d/1", 5e9, **spread)])
    assert [(one.over, one.outcome) for one in found.changes] == [("windows", "slower")] * 2
    assert found.changes[0].change == pytest.approx(-0.5)


def test_a_large_loss_that_may_be_chance_is_told_without_calling_it_a_regression(add):
    told = conclusion(compared(add("a", 98.0, 100.0, 102.0), add("b", 60.0, 90.0, 120.0)))
    assert told == (
        "No regression: nothing is certain to be slower by more than 5 %. ddp on 1 x 1, samples/s, "
        "is slower by 10.0 %, but that may be chance: more repeats would make it clear."
    )


# The command.


@pytest.fixture
def here(add, tmp_path, monkeypatch):
    """Folders `before`, `same` and `slow`, in the folder of runs."""
    add("before", 98.0, 100.0, 102.0)
    add("same", 99.0, 101.0, 103.0)
    add("slow", 79.0, 80.0, 81.0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_exit_code_says_whether_it_became_slower(here, capsys):
    assert main(["summary", "runs/same", "--against", "runs/before"]) == 0
    assert capsys.readouterr().out.startswith(
        "No regression: nothing is certain to be slower by more"
    )
    assert main(["summary", "runs/slow", "--against", "runs/before"]) == 1
    out = capsys.readouterr().out
    assert out.startswith(
        "Regression: ddp on 1 x 1, samples/s, is slower by 20.0 %; 5 % is allowed.\n"
    )
    assert "100.0 ± 5.0 (3)" in out
    assert main(["summary", "runs/slow", "--against", "runs/before", "--threshold", "25%"]) == 0


def test_a_saved_summary_is_a_baseline_as_well_as_the_runs(here, capsys):
    assert main(["summary", "runs/before", "--json"]) == 0
    saved = here / "baseline.json"
    saved.write_text(capsys.readouterr().out)
    (here / "wrapped.json").write_text(
        json.dumps({"version": 2, "runs": json.loads(saved.read_text())})
    )
    # As a version wrote it that had fewer keys.
    known = {"schema", "run", "job", "nodes", "gpus_per_node", "world_size", "state"}
    known |= {"configuration", "samples_per_s"}
    runs = [{key: run[key] for key in known} for run in json.loads(saved.read_text())]
    (here / "older.json").write_text(json.dumps(runs))
    for baseline in ("runs/before", "baseline.json", "wrapped.json", "older.json"):
        assert main(["summary", "runs/slow", "--against", baseline, "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert found["regression"] is True
        (change,) = found["changes"]
        assert change["change"] == pytest.approx(-0.2)
        assert change["outcome"] == "slower"
        assert len(change["before"]["runs"]) == 3


def test_what_never_began_has_failed_though_nobody_knows_its_device(make_run, add):
    slow, fast = {"lr": 0.01}, {"lr": 0.1}
    before = [*add("a", 100.0, train=slow), *add("a", 200.0, train=fast)]
    never = make_run("b/ddp-never", train=fast, verdict=FAILED)
    now = [*add("b", 100.0, train=slow), never]
    found = compared(before, now)
    failed = [change for change in found.changes if change.outcome == "failed"]
    assert [(change.now.runs, change.same_settings) for change in failed] == [([never.id], True)]
    assert found.regression
    again = [*now, *add("b", 200.0, train=fast)]
    assert not compared(before, again).regression


def test_without_names_runs_are_not_compared_with_themselves(here, capsys):
    assert main(["summary", "--against", "runs/before", "--json"]) == 0
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert len(change["now"]["runs"]) == 6


BAD = {
    "nothing.json": "there is no baseline nothing.json: there ",
    "empty.json": "is not JSON",
    "odd.json": "is no summary",
    "newer.json": "newer.json: its schema is 2, and this hpcdist reads 1",
    "runs/unlike": "has nothing in common with the runs: it has mine on 1 x 1, and they are ddp",
    "runs/failed": "has no run that is done",
}


@pytest.mark.parametrize(("baseline", "message"), BAD.items())
def test_what_is_no_baseline_is_refused(here, add, capsys, baseline, message):
    (here / "empty.json").write_text("")
    (here / "odd.json").write_text('[{"run": 3}]')
    (here / "newer.json").write_text('[{"schema": 2, "run": "r"}]')
    add("unlike", 10.0, job="mine")
    add("failed", 10.0, verdict=FAILED)
    assert main(["summary", "runs/slow", "--against", baseline]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "hint: " in err


@pytest.mark.parametrize("threshold", ["much", "-3%", "100%", "nan"])
def test_a_threshold_is_a_percentage(here, capsys, threshold):
    assert main(["summary", "--against", "runs/before", "--threshold", threshold]) == 2
    assert "is not a percentage" in capsys.readouterr().err
    assert main(["summary", "--threshold", "5%"]) == 2


def test_figures_that_are_not_there_are_left_out(add):
    before = summarize(add("a", 100.0, 101.0), {}).runs
    now = [structs.replace(run, samples_per_s=None) for run in before]
    assert compare_with(before, now, threshold=0.05).changes == []


def disturb(run, *, when=True):
    return structs.replace(run, disturbed="other processes took 1.5 of its 2 CPUs") if when else run


def test_runs_that_something_else_disturbed_are_left_out_and_named(add):
    before = summarize(add("a", 98.0, 100.0, 102.0), {}).runs
    now = summarize(add("b", 98.0, 100.0, 102.0, 40.0), {}).runs
    now = [disturb(run, when=run.samples_per_s.mean < 50) for run in now]
    result = compare_with(before, now, threshold=0.05)
    assert [(change.outcome, len(change.now.runs)) for change in result.changes] == [
        ("not distinguishable", 3)
    ]
    assert result.disturbed == [now[-1].run]
    file = io.StringIO()
    print_changes(make_console(file), result)
    text = " ".join(file.getvalue().split())
    assert "Left out, as something else used their CPUs" in text
    (change,) = compare_with(before, now, threshold=0.05, compares_disturbed=True).changes
    assert len(change.now.runs) == 4


def test_a_baseline_that_was_disturbed_is_none(add):
    before = [disturb(run) for run in summarize(add("a", 98.0, 100.0), {}).runs]
    now = summarize(add("b", 98.0, 100.0), {}).runs
    result = compare_with(before, now, threshold=0.05)
    assert not result.changes
    with pytest.raises(UserError) as error:
        check_comparison(result, before, now, name="old")
    assert "something else used the CPUs of" in error.value.message
    assert "--with-disturbed" in error.value.hint
