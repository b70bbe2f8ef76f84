"""`hpcdist summary --against`: changes with known answers, and the exit code for CI."""

import json

import pytest
from msgspec import structs

from hpcdist.cli.main import main
from hpcdist.runs.verdict import Verdict
from hpcdist.summary import summarize
from hpcdist.summary.compare.against import compare_with
from hpcdist.summary.report.changes import conclusion

FAILED = Verdict(kind="exit", state="failed", message="rank 0 left with 3", exit_code_of_run=1)
BEFORE = (98.0, 100.0, 102.0)


@pytest.fixture
def add(record_run, events):
    """Add runs of one job, a run for each rate; a list of rates is a run with such windows."""
    count = iter(range(1000))

    def add(folder, *rates, gpus=1, job="ddp", **options):
        made = []
        for rate in rates:
            windows = rate if isinstance(rate, list) else [rate] * 4
            ranks = [events.steady([one / gpus for one in windows])] * gpus
            name = f"{folder}/{job}-{next(count):03d}"
            made.append(record_run(name, *ranks, job=job, **options))
        return made

    return add


def compared(before, now, threshold=0.05):
    return compare_with(summarize(before, {}).runs, summarize(now, {}).runs, threshold=threshold)


def test_many_changes_show_one_by_chance_no_more_often_than_a_single_one(add):
    """p is 0.03, and there are two of them, as for any of which one of ten would be found."""
    now = (92.6, 94.6, 96.6)
    (only,) = compared(add("a", *BEFORE), add("b", *now), threshold=0.0).changes
    assert (only.outcome, only.times.p < 0.05) == ("slower", True)
    first = [*add("c", *BEFORE), *add("c", *BEFORE, job="other")]
    second = [*add("d", *now), *add("d", 99.0, 101.0, 102.0, job="other")]
    of_two, other = compared(first, second, threshold=0.0).changes
    assert of_two.times.p == pytest.approx(2 * only.times.p)
    assert of_two.outcome == other.outcome == "not distinguishable"
    assert of_two.times.interval.high > 1


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
    found = compared(add("a", *BEFORE), add("b", *rates), threshold)
    assert found.changes[0].outcome == outcome
    assert found.changes[0].times.mean == pytest.approx(sum(rates) / len(rates) / 100)
    assert found.regression is (outcome == "slower")
    is_doubted = outcome == "not distinguishable" and sum(rates) / len(rates) < 95
    assert ("but that may be chance" in conclusion(found)) is is_doubted


def test_single_runs_are_compared_by_their_windows(add):
    before = add("a", [50.0, 98.0, 100.0, 102.0, 100.0])  # the first is warm-up
    (change,) = compared(before, add("b", [50.0, 88.0, 90.0, 92.0, 90.0])).changes
    assert (change.times.over, change.outcome) == ("windows", "slower")


def test_sizes_and_settings_are_matched_each_with_its_own(add):
    before = [*add("a", 100.0, 101.0), *add("a", 190.0, 191.0, gpus=2)]
    now = [*add("b", 100.0, 101.0, torch="3.0.0", train={"seed": 5}), *add("b", 90.0, 91.0, gpus=2)]
    found = compared([*before, *add("a", 10.0, job="gone")], [*now, *add("b", 10.0, job="new")])
    assert {round(one.before.measured.mean, 1): one.outcome for one in found.changes} == {
        190.5: "slower",
        100.5: "not distinguishable",
    }
    assert sorted(found.left_out.values()) == [["gone-008"], ["new-009"]]


def test_runs_that_fail_now_are_a_regression(add, make_run):
    before = add("a", 100.0, 101.0)
    found = compared(before, add("b", 99.0, verdict=FAILED))
    assert (found.changes[0].outcome, found.regression) == ("failed", True)
    found = compared(before, [*add("c", 99.0, verdict=FAILED), *add("c", 100.0, 101.5)])
    assert not found.regression
    assert found.left_out == {"they did not end well": ["ddp-003"]}


def test_benchmarks_are_compared_cell_by_cell(add, make_run, events):
    def measured(name, rate):
        run = make_run(name, job="bench", gpus=2)
        table = {"event": "table", "time_s": 0.0, "name": "t", "rate": "bus_bytes_per_s"}
        cell = {"event": "cell", "table": "t", "time_s": 0.0, "rate": rate}
        made = cell | {"mean_time_s": 1e-3, "keys": {"size_bytes": 1024}}
        events.write(run, 0, [events.start(0, world_size=2), table, made])
        return run

    before = [measured("a/1", 10e9), measured("a/2", 10.2e9)]
    now = [measured("b/1", 5e9), measured("b/2", 5.1e9)]
    found = compared(before, now)
    (change,) = found.changes
    assert (change.quantity, change.outcome) == ("bus GB/s, size 1 KiB", "slower")


# The command.


@pytest.fixture
def here(add, tmp_path, monkeypatch):
    """Folders `before`, `same` and `slow`, in the folder of runs."""
    add("before", *BEFORE)
    add("same", 99.0, 101.0, 103.0)
    add("slow", 79.0, 80.0, 81.0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_exit_code_says_whether_it_became_slower_than_runs_or_their_saved_summary(here, capsys):
    assert main(["summary", "runs/same", "--against", "runs/before"]) == 0
    assert capsys.readouterr().out.startswith(
        "No regression: nothing is certain to be slower by more"
    )
    assert main(["summary", "runs/before", "--json"]) == 0
    saved = json.loads(capsys.readouterr().out)
    (here / "baseline.json").write_text(json.dumps(saved))
    for baseline in ("runs/before", "baseline.json"):
        assert main(["summary", "runs/slow", "--against", baseline]) == 1
        out = capsys.readouterr().out
        assert out.startswith(
            "Regression: ddp on 1 x 1, samples/s, is slower by 20.0 %; 5 % is allowed.\n"
        )
        assert "100.0 ± 5.0 (3)" in out
    assert main(["summary", "runs/slow", "--against", "baseline.json", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["regression"], found["changes"][0]["outcome"]) == (True, "slower")


BAD = {
    "nothing.json": "there is no baseline nothing.json: there ",
    "odd.json": "is no summary",
    "newer.json": "newer.json: its schema is 2, and this hpcdist reads 1",
    "runs/unlike": "has nothing in common with the runs: it has mine on 1 x 1, and they are ddp",
    "runs/failed": "has no run that is done",
}


@pytest.mark.parametrize(("baseline", "message"), BAD.items())
def test_what_is_no_baseline_is_refused(here, add, capsys, baseline, message):
    (here / "odd.json").write_text('[{"run": 3}]')
    (here / "newer.json").write_text('[{"schema": 2, "run": "r"}]')
    add("unlike", 10.0, job="mine")
    add("failed", 10.0, verdict=FAILED)
    assert main(["summary", "runs/slow", "--against", baseline]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "hint: " in err


def test_runs_that_something_else_disturbed_are_left_out_and_named(add):
    load = "other processes took 1.5 of its 2 CPUs"
    before = summarize(add("a", *BEFORE), {}).runs
    now = summarize(add("b", *BEFORE, 40.0), {}).runs
    now[-1] = structs.replace(now[-1], disturbed=load)
    result = compare_with(before, now, threshold=0.05)
    (change,) = result.changes
    assert (change.outcome, len(change.now.runs)) == ("not distinguishable", 3)
    assert [*result.left_out.values()] == [[now[-1].run]]
