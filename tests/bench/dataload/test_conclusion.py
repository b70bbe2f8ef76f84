"""How many workers, what the bottleneck is, and what would help: in words, from known figures."""

import pytest

from hpcdist.bench.dataload.conclusion import conclude
from hpcdist.bench.dataload.figures import ModelStep

TIMES_MS = {0: 60.0, 1: 58.0, 2: 33.0, 4: 32.9}


@pytest.fixture
def cells(cell):
    def make(times_ms=TIMES_MS, **options):
        return [cell(workers, time_ms, **options) for workers, time_ms in times_ms.items()]

    return make


def headline(cells, *steps):
    return "\n".join(conclude(cells, steps).conclusions)


def told(cells, *steps):
    conclusion = conclude(cells, steps)
    return "\n".join([*conclusion.conclusions, *conclusion.details])


def test_the_fewest_workers_that_none_beats_are_recommended_with_the_gain(cells):
    conclusion = conclude(cells(), [])
    assert conclusion.conclusions == [
        "Best with 2 workers: 1,939 ± 7 images/s with transform none."
    ]
    assert conclusion.details[:2] == [
        "With 2 workers 33 ms per batch of 64, 1.82 (1.81 to 1.83) times the rate without workers.",
        (
            "More workers gain nothing on its 2 CPUs: with 4 workers 1.00 (1.00 to 1.01) times as "
            "fast."
        ),
    ]


def test_transforms_with_as_many_workers_are_told_together(cells):
    light = {0: 90.0, 2: 66.0}
    heavy = {0: 99.0, 4: 80.0}
    several = [
        *cells(),
        *cells(light, transform="light"),
        *cells(heavy, transform="heavy"),
    ]
    assert headline(several) == (
        "Best with 2 workers: 1,939 ± 7 images/s with transform none, 970 ± 2 images/s with "
        "transform light; with 4 workers: 800 ± 1 images/s with transform heavy."
    )
    assert (
        "light: with 2 workers 66 ms per batch of 64, 1.36 (1.36 to 1.37) times the rate"
        in told(several)
    )


def test_one_number_of_workers_is_not_called_the_best(cells):
    said = headline(cells({2: 33.0}))
    assert said == "With 2 workers: 1,939 ± 7 images/s with transform none."


def test_where_passes_differ_what_is_certain_is_said_and_what_cannot_be_told(cells):
    some = [
        *cells({0: 75.5}, sd_ms=18.7),
        *cells({2: 29.0}, sd_ms=8.0),
        *cells({4: 26.2}, sd_ms=7.6),
    ]
    (said,) = conclude(some, []).conclusions
    assert said == (
        "Workers help: with 4 workers it is 2.9 (1.7 to 4.8) times as fast as without "
        "workers. Which of 2 and 4 is best is not certain: the passes differ by 29 % "
        "(sd). Run it again with more passes (data.repeats)."
    )
    more = [*cells({1: 60.0}, sd_ms=2.0), *some[1:]]
    assert headline(more).startswith("More workers help: with 4 workers it is 2.3 (1.4 to 3.8)")


def test_passes_that_differ_too_much_do_not_even_tell_whether_workers_help(cells):
    loud = cells({0: 200.0, 2: 168.0}, sd_ms=204.0, transform="light")
    conclusion = conclude([*cells(), *loud], [ModelStep(batch_size=64, mean_time_s=0.01)])
    best, unclear, late = conclusion.conclusions
    assert best == "Best with 2 workers: 1,939 ± 7 images/s with transform none."
    assert unclear.startswith("Whether workers help with transform light is not certain: with 2")
    assert "; the passes differ by 121 % (sd). Run it again" in unclear
    assert late.startswith("Loading is the bottleneck")
    slower = headline(cells({0: 168.0, 2: 200.0}, sd_ms=204.0))
    assert slower.startswith(
        "Whether fewer workers do as well is not certain: with 2 workers it is 0.8 ("
    )


def test_no_way_is_compared_with_itself(cells):
    said = headline(cells({0: 50.0, 2: 55.0, 4: 54.0}, sd_ms=30.0))
    assert "with 4 workers it is 0.9 (" in said
    assert ") times as fast as without workers" in said


def test_a_rank_that_loads_by_itself_does_so_before_its_step_however_many_cpus_it_has(cells):
    step = ModelStep(batch_size=64, mean_time_s=0.03, on_cpus=True)
    assert "together a step takes about 90 ms" in told(cells({0: 60.0}, cpus=8.0), step)


def test_whether_the_model_waits_is_not_said_where_it_cannot_be_told(cells):
    step = ModelStep(batch_size=64, mean_time_s=0.03)
    some = cells({2: 33.0}, sd_ms=11.0)
    assert headline(some, step).splitlines()[1] == (
        "Whether loading or the model is the bottleneck is not certain: a batch takes "
        "1.10 (0.73 to 1.66) times as long as a step."
    )
    assert "is the bottleneck: the model waits 9 %" in headline(cells({2: 33.0}), step)


def test_a_rate_has_its_interval_and_passes_that_differ_are_doubted(cells):
    many = cells({2: 33.0}, sd_ms=11.0, repeats=20)
    assert headline(many) == "With 2 workers: 1,939 ± 303 images/s with transform none."
    assert "differ by up to 33 % (sd), so that small differences may be chance" in told(many)
    assert "may be chance" not in told(cells())


def test_a_single_pass_is_told_to_say_nothing_of_chance(cells):
    assert "any difference may be chance" in told(cells(sd_time_s=None, repeats=1))


def test_a_better_mean_with_more_workers_has_its_interval(cells):
    few, many = cells({2: 40.0}, sd_ms=6.0), cells({4: 34.0}, sd_ms=6.0)
    said = told([*few, *many])
    assert "More workers may gain nothing on its 2 CPUs: with 4 workers 1.18 (0.9" in said


def test_lines_of_details_are_short(cells):
    step = ModelStep(batch_size=64, mean_time_s=0.1, model="resnet18", on_cpus=True)
    pipeline = "RandomHorizontalFlip, RandomAffine(degrees=5, translate=[0.1, 0.1], scale=[0.5, 2])"
    options = {"first_time_s": 0.1, "first_files": "warm", "sd_ms": 8.0}
    for parts_s in ({"read": 1e-3, "decode": 1e-3}, {"transform": 1e-3, "hand_over": 1e-3}):
        some = cells(parts_s=parts_s, **options)
        several = [*some, *cells(parts_s=parts_s, transform=pipeline, **options)]
        for given in (some, several):
            for steps in ([], [step]):
                lines = conclude(given, steps).details
                assert max(map(len, lines)) <= 125, max(lines, key=len)


@pytest.mark.parametrize(
    ("sd_ms", "workers"), [(0.1, 4), (1.8, 2)], ids=["clear-gain", "within-the-noise"]
)
def test_a_gain_within_the_noise_is_no_gain(cells, sd_ms, workers):
    times_ms = {1: 60.0, 2: 33.0, 4: 31.0}
    assert headline(cells(times_ms, sd_ms=sd_ms)).startswith(f"Best with {workers} workers: ")


def test_more_workers_than_were_tried_are_proposed_only_where_there_are_cpus(cells):
    times_ms = {0: 60.0, 2: 33.0}
    assert "its 8 CPUs may have room for them: data.workers=4." in told(cells(times_ms, cpus=8.0))
    used = told(cells(times_ms, cpus=2.0))
    assert "More were not tried, and its 2 CPUs have no room for them." in used
    shared = told(cells(times_ms, cpus=8.0, ranks=2))
    assert "the 4 CPUs of each rank may have room" in shared


def test_without_workers_may_be_best(cells):
    some = cells({0: 0.01, 1: 2.0, 2: 1.5}, sd_ms=0.001)
    assert headline(some) == (
        "Best without workers: 6,400,000 ± 794,665 images/s with transform none."
    )
    assert "Without workers 10 µs per batch of 64." in told(some)
    assert "with 2 workers 0.01 times as fast." in told(some)


def test_the_slower_of_model_and_loading_is_the_bottleneck(cells):
    slow = ModelStep(batch_size=64, mean_time_s=0.1, model="resnet50")
    fast = ModelStep(batch_size=64, mean_time_s=0.011)
    assert headline(cells(), slow).endswith("\nLoading is not the bottleneck, the model is.")
    took = "A step of resnet50 takes 100 ms, a batch 33 ms: ready before the model needs it."
    assert took in told(cells(), slow)
    waits = "\nLoading is the bottleneck: the model waits 67 % of the time."
    assert headline(cells(), fast).endswith(waits)
    assert "steps that take at least 33 ms." in told(cells())
    assert "--set dataload.step_time_s=" in told(cells())


def test_the_bottleneck_is_told_by_transform_where_it_differs(cells):
    step = ModelStep(batch_size=64, mean_time_s=0.05)
    several = [*cells(), *cells({2: 100.0}, transform="light")]
    assert headline(several, step).splitlines()[1:] == [
        "Loading is the bottleneck with transform light: the model waits 50 % of the time.",
        "Loading is not the bottleneck with transform none, the model is.",
    ]


def test_a_model_on_the_same_cpus_is_told_to_slow_loading_down(cells):
    """The images of a batch take 64 x 0.52 ms of work, on 2 CPUs."""
    step = ModelStep(batch_size=64, mean_time_s=0.1, model="mlp", on_cpus=True)
    assert "need the same CPUs: together a step takes about 117 ms." in told(cells(), step)


def test_a_step_time_of_another_batch_size_is_not_compared(cells):
    step = ModelStep(batch_size=32, mean_time_s=0.1)
    assert "keeps up with training steps" in told(cells(), step)
    assert "bottleneck" not in headline(cells(), step)


@pytest.mark.parametrize(
    ("part", "options", "advice"),
    [
        ("read", {}, "Reading a file takes 1 ms.\nA copy on a local disk would help."),
        ("decode", {"decoder": "exact"}, "data.decoder=fast takes less time, but"),
        ("transform", {}, "without any, at most 11.0 times as fast"),
    ],
    ids=[
        "read",
        "decode-exact",
        "transform",
    ],
)
def test_help_is_offered_for_the_largest_part(cells, part, options, advice):
    parts_s = dict.fromkeys(("read", "decode", "transform", "collate", "hand_over"), 25e-6)
    parts_s[part] = 1e-3
    assert advice in told(cells(parts_s=parts_s, **options))


def test_busy_cpus_are_told_apart_from_waiting(cells):
    """1,939 images/s x 0.52 ms are one CPU's work; 3,800 images/s are that of two."""
    assert "busy with it" not in told(cells())
    assert "The 2 CPUs are busy with it" in told(cells({2: 17.0}))


def test_the_slower_node_is_named_and_is_what_the_rest_is_about(cells):
    both = [*cells(), *cells({2: 66.0}, node=1)]
    lines = told(both).splitlines()
    assert lines[0].startswith("Node 1 (n1) loads 970 images/s at its best, node 0 (n0) 2.01 (")
    assert lines[1] == "With 2 workers: 970 ± 2 images/s with transform none."
    alike = [*cells(), *cells({2: 33.5}, node=1)]
    assert "Node" not in told(alike)


@pytest.mark.parametrize(
    ("first_files", "words"),
    [
        ("cold", "files that came from storage"),
        ("warm", "in memory already"),
        ("unknown", "does not show whether its files were in memory"),
    ],
)
def test_a_slow_first_pass_is_told_with_what_is_known_of_its_files(cells, first_files, words):
    options = {"first_time_s": 0.1, "first_files": first_files}
    assert words in told(cells({2: 33.0}, **options))
    assert "first pass" not in told(cells({2: 33.0}))


def test_reads_that_overlap_are_told_to(cells):
    """6,400 images/s in 2 workers that each take 10 ms to read a file: 32 reads at once in each."""
    parts_s = {"read": 10e-3, "decode": 50e-6}
    said = told(cells({2: 10.0}, parts_s=parts_s))
    assert "Reading a file takes 10 ms, each worker has about 32 reads under way." in said
    assert "More workers than CPUs, or a copy" in said


def test_more_workers_are_not_advised_where_they_were_seen_to_gain_nothing(cells):
    parts_s = {"read": 10e-3, "decode": 50e-6}
    said = told(cells({2: 10.0, 4: 10.0}, parts_s=parts_s))
    assert "More workers gain nothing" in said
    assert "A copy on a local disk would help." in said
