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
    assert conclusion.conclusions == ["Best with 2 workers: 1,939 images/s with transform none."]
    assert conclusion.details[:2] == [
        "With 2 workers 33 ms per batch of 64, 1.82 times the rate without workers.",
        "More workers gain nothing on its 2 CPUs: with 4 workers 1.00 times as fast.",
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
        "Best with 2 workers: 1,939 images/s with transform none, 970 images/s with transform light"
        "; with 4 workers: 800 images/s with transform heavy."
    )
    assert "light: with 2 workers 66 ms per batch of 64, 1.36 times the rate" in told(several)


def test_one_number_of_workers_is_not_called_the_best(cells):
    assert headline(cells({2: 33.0})) == "With 2 workers: 1,939 images/s with transform none."


def test_passes_that_differ_greatly_tell_nothing_but_that(cells):
    """Of the means 6 times the time of the other is no gain, with such passes."""
    loud = cells({2: 168.0}, sd_ms=204.0)
    conclusion = conclude([*cells({0: 1000.0}), *loud], [])
    assert conclusion.conclusions == [
        "The best number of workers is unclear: the passes differ by 121 % (sd). Run it again."
    ]
    assert conclusion.details == []
    assert headline(loud).startswith("The speed of loading is unclear: the passes differ by")


def test_only_the_transform_whose_passes_differ_greatly_is_not_told(cells):
    loud = cells({0: 200.0, 2: 168.0}, sd_ms=204.0, transform="light")
    conclusion = conclude([*cells(), *loud], [ModelStep(batch_size=64, mean_time_s=0.01)])
    assert conclusion.conclusions == [
        "Best with 2 workers: 1,939 images/s with transform none.",
        (
            "The best number of workers is unclear with transform light: the passes differ by "
            "121 % (sd). Run it again."
        ),
        "Loading is the bottleneck: the model waits 70 % of the time.",
    ]
    assert "light" not in "".join(conclusion.details)


def test_more_passes_tell_what_few_that_differ_as_much_cannot(cells):
    assert "is unclear" in headline(cells({2: 33.0}, sd_ms=11.0, repeats=5))
    many = cells({2: 33.0}, sd_ms=11.0, repeats=20)
    assert "is unclear" not in headline(many)
    assert "differ by up to 33 % (sd), so that small differences may be chance" in told(many)
    assert "may be chance" not in told(cells())


def test_a_single_pass_is_told_to_say_nothing_of_chance(cells):
    assert "any difference may be chance" in told(cells(sd_time_s=None, repeats=1))


def test_a_better_mean_with_more_workers_is_told_to_be_within_the_noise(cells):
    few, many = cells({2: 40.0}, sd_ms=6.0), cells({4: 34.0}, sd_ms=6.0)
    assert "with 4 workers 1.18 times as fast, which is within the noise." in told([*few, *many])


def test_lines_of_details_are_short(cells):
    step = ModelStep(batch_size=64, mean_time_s=0.1, model="resnet18", on_cpus=True)
    pipeline = "RandomHorizontalFlip, RandomAffine(degrees=5, translate=[0.1, 0.1], scale=[0.5, 2])"
    options = {"first_time_s": 0.1, "first_files": "warm", "cache": False, "sd_ms": 8.0}
    for parts_s in ({"read": 1e-3, "decode": 1e-3}, {"transform": 1e-3, "hand_over": 1e-3}):
        some = cells(parts_s=parts_s, **options)
        several = [*some, *cells(parts_s=parts_s, transform=pipeline, **options)]
        for given in (some, several):
            for steps in ([], [step]):
                lines = conclude(given, steps).details
                assert max(map(len, lines)) <= 110, max(lines, key=len)


@pytest.mark.parametrize(
    ("sd_ms", "workers"), [(0.1, 4), (5.0, 2)], ids=["clear-gain", "within-the-noise"]
)
def test_a_gain_within_the_noise_is_no_gain(cells, sd_ms, workers):
    times_ms = {1: 60.0, 2: 33.0, 4: 31.0}
    assert headline(cells(times_ms, sd_ms=sd_ms)).startswith(f"Best with {workers} workers: ")


def test_more_workers_than_were_tried_are_proposed_only_where_there_are_cpus(cells):
    times_ms = {0: 60.0, 2: 33.0}
    assert "its 8 CPUs may have room: data.workers=4." in told(cells(times_ms, cpus=8.0))
    used = told(cells(times_ms, cpus=2.0))
    assert "More were not tried, and its 2 CPUs have no room for them." in used
    shared = told(cells(times_ms, cpus=8.0, ranks=2))
    assert "the 4 CPUs of each rank may have room" in shared


def test_without_workers_may_be_best(cells):
    some = cells({0: 0.01, 1: 2.0, 2: 1.5}, sd_ms=0.001)
    assert headline(some) == "Best without workers: 6,400,000 images/s with transform none."
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
        ("read", {}, "Reading a file takes 1 ms.\nMore at once (data.reads=16)"),
        ("read", {"cache": False}, "data.cache=auto keeps decoded images that fit in memory"),
        ("decode", {"decoder": "pil"}, "data.decoder=exact decodes to the same pixels"),
        ("decode", {"decoder": "exact"}, "data.decoder=fast takes less time, but"),
        ("transform", {}, "without any, at most 11.0 times as fast"),
        ("transform", {"device_transform": False}, "data.device_transform=true does them on GPUs"),
        ("hand_over", {"handover": "float32"}, "data.handover=uint8 hands a quarter"),
    ],
    ids=[
        "read",
        "read-uncached",
        "decode-pil",
        "decode-exact",
        "transform",
        "transform-on-cpus",
        "hand-over",
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


def test_what_was_compared_is_told_with_its_gain(cells):
    pil, exact = cells({2: 40.0}, decoder="pil"), cells({2: 32.0}, decoder="exact")
    assert "data.decoder: exact loads 1.25 times as much as pil" in told([*pil, *exact])


def test_which_of_several_roots_loads_more_is_told(cells):
    home, scratch = cells({2: 40.0}, root="/home/lfw"), cells({2: 32.0}, root="/scratch/lfw")
    said = told([*home, *scratch])
    assert "data.root: /scratch/lfw loads 1.25 times as much as /home/lfw" in said


def test_the_slower_node_is_named_and_is_what_the_rest_is_about(cells):
    both = [*cells(), *cells({2: 66.0}, node=1)]
    lines = told(both).splitlines()
    assert lines[0].startswith("Node 1 (n1) loads 970 images/s at its best, node 0 (n0) 2.01 times")
    assert lines[1] == "With 2 workers: 970 images/s with transform none."
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
    said = told(cells({2: 10.0}, parts_s=parts_s, reads=32))
    assert "Reading a file takes 10 ms, each worker has about 32 reads under way." in said
    assert "More at once (data.reads=64), more workers than CPUs, or a copy" in said


def test_more_workers_are_not_advised_where_they_were_seen_to_gain_nothing(cells):
    parts_s = {"read": 10e-3, "decode": 50e-6}
    said = told(cells({2: 10.0, 4: 10.0}, parts_s=parts_s))
    assert "More workers gain nothing" in said
    assert "More at once (data.reads=64), or a copy on a local disk would help." in said


def test_more_reads_are_proposed_than_there_are_by_themselves(cells):
    """1,600 images/s of a worker that takes 10 ms to read a file: 16 reads at once."""
    said = told(cells({1: 40.0}, parts_s={"read": 10e-3, "decode": 50e-6}))
    assert "about 16 reads under way." in said
    assert "More at once (data.reads=32)" in said


def test_a_gain_beyond_what_can_be_measured_is_not_given_as_a_number(cells):
    parts_s = {"read": 10e-3, "decode": 1e-3, "collate": 1e-6}
    said = told(cells({1: 40.0}, parts_s=parts_s, cache=False))
    assert "later epochs are many times as fast." in said


def test_what_was_compared_and_gains_nothing_is_told_and_not_advised(cells):
    """A difference of 25 % with an sd of a fifth of the mean is none."""
    uint8 = cells({2: 40.0}, handover="uint8", sd_ms=7.0)
    float32 = cells({2: 32.0}, handover="float32", sd_ms=7.0, parts_s={"collate": 1e-3})
    said = told([*uint8, *float32])
    assert "data.handover: float32 and uint8 load equally fast, all else being equal." in said
    assert "a quarter of the bytes" not in said


def test_a_choice_whose_passes_differ_greatly_is_not_told(cells):
    pil, exact = cells({2: 40.0}, decoder="pil", sd_ms=40.0), cells({2: 32.0}, decoder="exact")
    assert "data.decoder: unclear, as the passes differ by 100 % (sd)." in told([*pil, *exact])
