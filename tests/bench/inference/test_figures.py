"""From which batch size on the parallel form wins, in figures and in words."""

import pytest

from hpcdist.bench.benchmark import timed_fields
from hpcdist.bench.inference.figures import (
    InferenceCell,
    compare_with_single,
    pair_with_single,
    share_of,
    wins_from,
)

SINGLE = {1: 1.0, 8: 1.0, 64: 4.0, 512: 32.0}
"""Milliseconds by batch size."""


def cells(strategy, times_ms, *, devices=1, sd_ms=0.01, **fields):
    return [
        InferenceCell(
            strategy=strategy,
            batch_size=size,
            devices=devices,
            repeats=16,
            mean_time_s=time_ms / 1e3,
            sd_time_s=sd_ms / 1e3,
            **fields,
        )
        for size, time_ms in times_ms.items()
    ]


def first_win(parallel_ms, **options):
    parallel = cells("data_parallel", parallel_ms, devices=2, **options)
    return wins_from(pair_with_single([*cells("single", SINGLE, **options), *parallel]))


@pytest.mark.parametrize(
    ("parallel_ms", "first"),
    [
        ({1: 2.0, 8: 2.0, 64: 3.0, 512: 18.0}, 64),
        ({1: 0.6, 8: 0.6, 64: 2.1, 512: 17.0}, 1),
        ({1: 2.0, 8: 2.0, 64: 5.0, 512: 33.0}, None),
        ({1: 2.0, 8: 0.5, 64: 5.0, 512: 18.0}, 512),
        ({1: 0.5, 8: 0.5, 64: 3.0, 512: 33.0}, None),
    ],
    ids=["from-64", "always", "never", "loses-again-between", "not-with-the-largest"],
)
def test_a_form_wins_from_the_size_after_which_it_never_loses(parallel_ms, first):
    assert first_win(parallel_ms) == first


def test_a_difference_within_the_noise_is_no_win():
    """Means 0.2 ms apart; their standard errors are sd / 4 each."""
    assert first_win({512: 31.8}, sd_ms=0.1) == 512
    assert first_win({512: 31.8}, sd_ms=0.4) is None


def concluded(parallel_ms, **fields):
    told = compare_with_single(
        [*cells("single", SINGLE), *cells("data_parallel", parallel_ms, **{"devices": 2} | fields)]
    )
    assert len(told) == 1
    return told[0]


def test_the_sentence_says_from_where_on_by_how_much_and_what_holds_below():
    assert concluded({1: 2.5, 8: 2.5, 64: 3.0, 512: 20.0}) == (
        "data_parallel (2 devices) is faster than single from 64 images per batch on: 1.60 times "
        "with 512. With 1 it is not: a call takes 2.5 ms, and 1 on one device."
    )


def test_a_form_that_always_wins_is_told_so():
    assert concluded({1: 0.9, 8: 0.8, 64: 2.5, 512: 16.0}) == (
        "data_parallel (2 devices) is faster than single with every batch size that was measured "
        "for it, from 1 on: 2.00 times with 512."
    )


def test_more_than_the_devices_can_give_is_doubted():
    assert "something else slowed single down" in concluded({512: 10.0})


def test_a_form_that_never_wins_is_explained_by_what_sharing_saved():
    sentence = concluded({1: 3.0, 8: 3.0, 64: 6.0, 512: 32.0})
    assert sentence.startswith("data_parallel (2 devices) gains nothing: at its best")
    assert "A share of 256 instead of 512 images saves 0 % of the time" in sentence
    assert "save up to 50 %" in sentence


def test_a_form_that_never_wins_is_explained_by_its_own_parts_where_they_are_known():
    parts_s = {"replicate": 0.02, "scatter": 0.004, "gather": 0.002}
    sentence = concluded({512: 40.0}, parts_s=parts_s)
    assert sentence.endswith("Parts of its time: replicate 50 %, scatter 10 %, gather 5 %.")


def test_calls_that_differ_too_much_to_tell_are_no_reason_to_say_never():
    sentence = concluded({512: 17.0}, sd_ms=60.0)
    assert sentence.startswith(
        "Whether data_parallel (2 devices) is faster than single is not certain: at its best"
    )
    assert "inference.repeats" in sentence
    # Less noise, in which half of the ideal gain would have been seen.
    assert "gains nothing: at its best" in concluded({512: 30.0}, sd_ms=5.0)


def test_strategies_and_batch_sizes_are_judged_together():
    """A gain that would be certain by itself may be the chance of one of many sizes."""
    single = cells("single", dict.fromkeys(range(1, 9), 10.0), sd_ms=0.4)
    parallel = dict.fromkeys(range(1, 8), 10.0) | {8: 9.68}
    many = pair_with_single([*single, *cells("data_parallel", parallel, devices=2, sd_ms=0.4)])
    alone = cells("single", {8: 10.0}, sd_ms=0.4), cells("data_parallel", {8: 9.68}, sd_ms=0.4)
    assert pair_with_single([*alone[0], *alone[1]])[0].is_win
    assert not many[-1].is_win
    assert many[-1].time.p == pytest.approx(8 * pair_with_single([*alone[0], *alone[1]])[0].time.p)


def test_a_win_that_does_not_last_is_told_with_the_sizes():
    assert concluded({1: 0.5, 8: 0.5, 64: 3.0, 512: 33.0}) == (
        "data_parallel (2 devices) is faster than single with 1, 8, 64 per batch, but not with 512."
    )


@pytest.mark.parametrize("strategy", ["data_parallel", "process_per_gpu"])
def test_one_device_shows_no_parallelism(strategy):
    told = compare_with_single([*cells("single", SINGLE), *cells(strategy, SINGLE)])
    assert told[0].startswith(f"{strategy} (1 device) shows no parallelism")


def test_sizes_that_did_not_fit_into_memory_are_not_compared():
    lost = InferenceCell(strategy="data_parallel", batch_size=512, devices=2, error="out of memory")
    told = compare_with_single([*cells("single", SINGLE), lost])
    assert told == [
        "data_parallel (2 devices) cannot be compared: it has no batch size in common with single."
    ]
    assert compare_with_single([lost]) == []


def test_mean_and_sd_are_those_of_the_repeats():
    assert timed_fields([1.0, 2.0, 3.0], 8) == {
        "repeats": 3,
        "mean_time_s": 2.0,
        "sd_time_s": 1.0,
        "min_time_s": 1.0,
        "p25_time_s": 1.0,
        "median_time_s": 2.0,
        "p75_time_s": 3.0,
        "images_per_s": 4.0,
    }


def test_shares_cover_a_batch_and_differ_by_one_at_most():
    shares = [share_of(10, rank, 4) for rank in range(4)]
    assert shares == [(0, 2), (2, 5), (5, 7), (7, 10)]
