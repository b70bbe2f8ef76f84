"""Which value of a swept setting is best, and when that cannot be told."""

import pytest
from summary_text import in_words

from hpcdist.base import files
from hpcdist.summary import summarize
from hpcdist.summary.report.pictures.catalogue import find_pictures
from hpcdist.summary.report.report import make_sections


@pytest.fixture
def add_tested(record_run, events):
    """Add a run with a learning rate that came to an accuracy."""

    def add(lr, seed, accuracy):
        tested = {"event": "evaluate", "time_s": 1.0, "loss": 0.5, "step": 40}
        made = [*events.steady([100.0] * 4), tested | {"accuracy": accuracy}]
        return record_run(f"ddp-{lr}-{seed}", made, train={"lr": lr, "seed": seed})

    return add


def sweep(add, accuracies):
    return [
        add(lr, seed, accuracy)
        for lr, of_lr in accuracies.items()
        for seed, accuracy in enumerate(of_lr)
    ]


def test_the_best_value_is_named_first_and_stands_first_in_the_table(add_tested):
    runs = sweep(
        add_tested,
        {0.1: [0.80, 0.81, 0.79], 0.01: [0.97, 0.975, 0.965], 0.001: [0.90, 0.91, 0.89]},
    )
    text = in_words(runs)
    assert text.startswith("ddp: lr=0.01 (97.00 ± 1.24 %) has the best test accuracy; the next is")
    assert "the next is lr=0.001 (90.00 ± 2.48 %)." in text
    table = text[text.index("Values by what they came to") :]
    assert table.index("0.01 3 97.00 ± 1.24") < table.index("0.001 3 90.00") < table.index("0.1 3")


def test_values_within_each_others_spread_are_not_told_apart(add_tested):
    runs = sweep(
        add_tested,
        {0.1: [0.96, 0.99, 0.93], 0.01: [0.97, 0.94, 0.98], 0.001: [0.50, 0.51, 0.49]},
    )
    text = in_words(runs)
    assert "Which has the best test accuracy is not certain: lr=0.01 (96.33" in text
    assert "or lr=0.1 (96.00" in text


@pytest.mark.parametrize(
    ("accuracies", "why"),
    [
        ({0.1: [0.8], 0.01: [0.9]}, "Each value was run once"),
        (
            {0.1: [0.8, 0.8], 0.01: [0.9, 0.9]},
            "Repeats with one seed (--same-seed) come to",
        ),
    ],
)
def test_what_one_seed_shows_is_not_called_certain(add_tested, accuracies, why):
    text = in_words(sweep(add_tested, accuracies))
    assert "lr=0.01 (90.00" in text.split("has the best test accuracy")[0]
    assert why in text


def test_own_code_without_tests_is_ranked_by_its_last_loss_and_our_jobs_are_not(make_run, events):
    runs = []
    for lr, loss in ((0.1, 0.4), (0.01, 0.2)):
        run = make_run(f"own-{lr}", train={"lr": lr})
        windows = [window | {"loss": loss} for window in events.steady([100.0] * 4)]
        events.write(run, 0, [events.start(0, world_size=1), *windows])
        runs.append(run)
    assert "training loss" not in in_words(runs)
    for run in runs:
        spec = files.read_json(run.spec_file)
        files.write_json(run.spec_file, spec | {"job": spec["job"] | {"workload": "script"}})
    assert "lr=0.01 (0.2000) has the least training loss, then lr=0.1 (0.4000)" in in_words(runs)


def test_the_picture_has_the_values_of_the_table(add_tested):
    runs = sweep(add_tested, {0.1: [0.80, 0.82], 0.01: [0.97, 0.95], 0.001: [0.90, 0.92]})
    (picture,) = [
        one for _, one in find_pictures(make_sections(summarize(runs, {}))) if "values" in one.name
    ]
    (axes,) = picture.draw().axes
    assert axes.get_xscale() == "log"
    line = axes.containers[0].lines[0]
    assert list(line.get_xdata()) == [0.001, 0.01, 0.1]
    assert list(line.get_ydata()) == pytest.approx([91.0, 96.0, 81.0])
