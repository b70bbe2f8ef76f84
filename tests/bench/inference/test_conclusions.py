"""From which batch size on a parallel strategy is faster, in words, from known figures."""

import pytest

from hpcdist.bench.cells import TimedCell
from hpcdist.bench.inference.conclusions import conclude

SINGLE = {1: 1.0, 8: 1.0, 64: 4.0, 512: 32.0}
"""Milliseconds by batch size."""


def cells(strategy, times_ms, *, devices=1, sd_ms=0.01, **fields):
    return [
        TimedCell(
            table="inference",
            keys={"batch_size": size, "strategy": strategy},
            repeats=16,
            mean_time_s=time_ms / 1e3,
            sd_time_s=sd_ms / 1e3,
            rate=size / time_ms * 1e3,
            more={"devices": devices},
            **fields,
        )
        for size, time_ms in times_ms.items()
    ]


FASTER = "data_parallel (2 devices) is faster than single"
SAID = {
    "from 64": (
        {1: 2.5, 8: 2.5, 64: 3.0, 512: 20.0},
        {},
        f"{FASTER} from 64 images per batch on: 1.60 times with 512. With 1 it is not: a call "
        "takes 2.5 ms, and 1 on one device.",
    ),
    "always": (
        {1: 0.9, 8: 0.8, 64: 2.5, 512: 16.0},
        {},
        f"{FASTER} from 1 image per batch on: 2.00 times with 512.",
    ),
    "not with the largest": (
        {1: 0.5, 8: 0.5, 64: 3.0, 512: 33.0},
        {},
        f"{FASTER} with 1, 8, 64 per batch, but not with 512.",
    ),
    "never": (
        {1: 3.0, 8: 3.0, 64: 6.0, 512: 33.0},
        {},
        "data_parallel (2 devices) is slower than single with every batch size: at its best, with "
        "512 per batch, it takes 33 ms, and 32 on one device. A share of 256 instead of 512 images "
        "saves 0 % of the time, where 2 devices of their own would save up to 50 %: the rest is "
        "the fixed cost of a call, or the devices share what they compute with.",
    ),
    "unsure": ({512: 17.0}, {"sd_ms": 60.0}, f"Whether {FASTER}"),
    # Less noise, in which half of the ideal gain would have been seen.
    "less noise": ({512: 30.0}, {"sd_ms": 5.0}, "gains nothing: at its best"),
    "one device": ({512: 33.0}, {"devices": 1}, "(1 device) shows no parallelism"),
    "no common size": ({16: 1.0}, {}, "be compared: it has no batch size in common with single"),
}


@pytest.mark.parametrize(("parallel_ms", "fields", "said"), SAID.values(), ids=SAID)
def test_the_sentence_says_from_where_on_by_how_much_and_how_sure(parallel_ms, fields, said):
    sd_ms = fields.get("sd_ms", 0.01)
    parallel = cells("data_parallel", parallel_ms, **{"devices": 2} | fields)
    first, sentence = conclude([*cells("single", SINGLE, sd_ms=sd_ms), *parallel])
    assert first == "single reaches 16,000 images/s, with 64 images per batch."
    assert sentence == said if said.endswith(".") else said in sentence


def test_sizes_that_did_not_fit_into_memory_are_not_compared():
    keys = {"batch_size": 512, "strategy": "data_parallel"}
    lost = TimedCell(table="inference", keys=keys, more={"devices": 2}, note="out of memory")
    assert "no batch size in common" in conclude([*cells("single", SINGLE), lost])[1]
    assert conclude([lost]) == []
