"""Advice in words, from known figures: the number of workers, the bottleneck, what would help."""

import pytest

from hpcdist.bench.cells import TimedCell
from hpcdist.bench.dataload.advice import Loading, conclude

PARTS = {
    "read": 20e-6,
    "decode": 300e-6,
    "transform": 200e-6,
    "collate": 20e-6,
    "hand_over": 40e-6,
}
TIMES_MS = {0: 60.0, 1: 58.0, 2: 33.0, 4: 32.9}
HERE = {"cpus": 2.0, "decoder": "exact"}


def cells(times_ms=TIMES_MS, *, sd_ms=0.1, transform="none", **fields):
    keys = {"transform": transform, "batch_size": 64}
    keys = {key: value for key, value in keys.items() if value}
    return [
        TimedCell(
            **{
                "table": "loading",
                "keys": {**keys, "workers": workers},
                "repeats": 5,
                "mean_time_s": time_ms / 1e3,
                "sd_time_s": sd_ms / 1e3,
                "rate": 64 / time_ms * 1e3,
                "parts_s": PARTS,
                **fields,
            }
        )
        for workers, time_ms in times_ms.items()
    ]


def findings(cells, **loading):
    return conclude(cells, Loading(**{**HERE, **loading}))


def headline(cells, **loading):
    return "\n".join(findings(cells, **loading).conclusions)


def told(cells, **loading):
    found = findings(cells, **loading)
    return "\n".join([*found.conclusions, *found.details])


def test_the_fewest_workers_that_none_beats_are_the_answer_with_the_gain():
    found = findings(cells())
    assert found.conclusions[0] == (
        "Use 2 workers (data.workers=2): 1,939 ± 7 images/s, 1.82 (1.81 to 1.83) times the rate "
        "without workers."
    )
    assert found.details[0] == (
        "A batch of 64 takes 33.0 ms with 2 workers; more gain nothing on its 2 CPUs: with 4 "
        "workers it is 1.00 (1.00 to 1.01) times as fast."
    )


def test_a_users_own_data_set_is_answered_for_their_own_loader():
    parts = {"wait": 0.0, "item": 500e-6, "collate": 40e-6, "hand_over": 40e-6}
    own = cells(transform=None, parts_s=parts)
    assert headline(own, decoder=None).startswith(
        "Use 2 workers (num_workers=2): 1,939 ± 7 samples/s, 1.82 (1.81 to 1.83) times"
    )
    assert (
        "One sample takes 580 µs of a worker: computing in __getitem__ 86 %, collate 7 %"
        in told(own, decoder=None)
    )


@pytest.mark.parametrize("times_ms", [{0: 10.0, 1: 20.0, 2: 15.0}, {0: 50.0, 2: 50.0}, {0: 50.0}])
def test_no_way_is_compared_with_itself_and_one_alone_is_not_called_the_best(times_ms):
    said = told(cells(times_ms))
    assert said.startswith("Use" if len(times_ms) > 1 else "Only tried:")
    assert "no workers (data.workers=0)" in said.splitlines()[0]
    assert "without workers it is" not in said
    assert "the rate without workers" not in said


def test_where_passes_differ_the_answer_stands_first_and_its_doubt_second():
    some = [
        *cells({0: 75.5}, sd_ms=18.7),
        *cells({2: 29.0}, sd_ms=8.0),
        *cells({4: 26.2}, sd_ms=7.6),
    ]
    answer, doubt, _ = findings(some).conclusions
    assert answer.startswith(
        "Use 2 workers (data.workers=2): 2,207 (1,451 to 2,963) images/s, 2.60 (1.65 to 4.11) times"
    )
    assert doubt == (
        "Whether with 4 workers it is faster is not certain: 1.1 (0.7 to 1.7) times as fast. "
        "Run it again with more passes (data.repeats)."
    )


def test_more_workers_than_were_tried_are_proposed_only_where_there_are_cpus():
    some = cells({0: 60.0, 2: 33.0})
    waiting = cells({0: 60.0, 2: 33.0}, parts_s={"wait": 1e-3, "item": 1e-5})
    assert "more were not tried: 4 may be faster." in told(some, cpus=8.0)
    assert "more were not tried, and its 2 CPUs have no room." in told(some)
    assert "more were not tried: 4 may be faster." in told(waiting, decoder=None)
    assert "busy" not in told(waiting, decoder=None)


def test_the_steps_that_loading_keeps_up_with_are_those_of_the_slowest_transform():
    assert findings(cells()).conclusions[1] == "Loading keeps up with training steps of 33.0 ms."
    several = [*cells(), *cells({0: 120.0, 2: 100.0}, transform="light")]
    assert findings(several).conclusions == [
        "Use 2 workers (data.workers=2): 1,939 ± 7 images/s with transform none, 640 ± 1 images/s "
        "with transform light.",
        "Loading with transform light keeps up with training steps of 100 ms.",
    ]
    assert "A batch of 64 with transform light takes 100 ms with 2 workers;" in told(several)


@pytest.mark.parametrize(
    ("part", "decoder", "advice"),
    [
        (
            "read",
            "exact",
            "Each image waits 1.00 ms for storage, or for something else.\nA copy on a",
        ),
        ("decode", "exact", "data.decoder=fast takes less time, but"),
        ("decode", "fast", "Smaller files, or data.size below"),
        ("transform", "exact", "without any, at most 11.0 times as fast"),
    ],
    ids=["read", "decode-exact", "decode-fast", "transform"],
)
def test_help_is_offered_for_the_largest_part(part, decoder, advice):
    parts_s = dict.fromkeys(PARTS, 25e-6) | {part: 1e-3}
    assert advice in told(cells(parts_s=parts_s), decoder=decoder)
    # 1,939 images/s x 0.52 ms are one CPU's work; 3,800 images/s are that of two.
    assert "busy with it" not in told(cells())
    assert "The CPUs are busy with it" in told(cells({2: 17.0}))
