"""The ways of loading, the figures of a node from those of its ranks, and advice in words."""

import msgspec
import pytest

from hpcdist.bench.cells import TimedCell
from hpcdist.bench.dataload.advice import Loading, conclude
from hpcdist.bench.dataload.measure import Passes, fit
from hpcdist.bench.dataload.ways import Way, combine, in_words, several
from hpcdist.bench.dataload.workload import to_cell
from hpcdist.job.spec import DataloadJob, LoadedData


def data(**values):
    return msgspec.convert(values, LoadedData)


def test_each_way_is_said_as_a_training_job_would_say_it():
    given = {"name": "image_folder", "root": "/data", "size": 64, "decoder": "fast"}
    job = DataloadJob(name="test", data=data(**given, workers=3, transform=["light", []]))
    (_, first), (setting, second) = combine(job).items()
    assert (first.name, first.root, first.size) == ("image_folder", "/data", 64)
    assert (first.workers, first.transform, first.decoder) == (3, "light", "fast")
    assert (second.transform, setting.transform) == ((), "none")


AFFINE = {"RandomAffine": {"degrees": 5, "shear": 1}}
TOLD = "RandomHorizontalFlip, RandomAffine(degrees=5, shear=1)"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["none", "light", "heavy"], ["none", "light", "heavy"]),
        (["RandomHorizontalFlip", AFFINE], [TOLD]),
        (["none", ["RandomHorizontalFlip", AFFINE]], ["none", TOLD]),
    ],
)
def test_a_list_of_transforms_is_one_unless_all_in_it_are_whole(given, told):
    found = several(data(transform=given), "transform")
    assert [one if isinstance(one, str) else in_words(one) for one in found] == told


# Figures.


@pytest.mark.parametrize(
    ("time_s", "expected"),
    [(100.0, (3, 100)), (25.0, (2, 100)), (10.0, (2, 50)), (0.01, (2, 1))],
)
def test_passes_are_given_up_before_batches(time_s, expected):
    assert fit(3, 100, batch_time_s=0.1, time_s=time_s) == expected
    assert fit(1, 10, batch_time_s=1.0, time_s=5.0) == (1, 5)  # a single pass stays single


def passes(*times_s, parts_s=None):
    return Passes(times_s=list(times_s), parts_s=parts_s or {}, first_batches_s=[0.5])


def test_the_slowest_rank_counts_and_rates_add_up():
    cell = to_cell(Way("none", 8, 2), [passes(0.1, 0.3), passes(0.2, 0.2)], 4)
    assert cell.keys == {"transform": "none", "batch_size": 8, "workers": 2}
    assert (cell.repeats, cell.mean_time_s) == (2, pytest.approx(0.25))
    assert cell.sd_time_s == pytest.approx(0.0707, abs=1e-4)
    assert cell.rate == pytest.approx(2 * 8 / 0.25)


@pytest.mark.parametrize("workers", [0, 8])
@pytest.mark.parametrize("cpus", [1, 4])
@pytest.mark.parametrize("stage_s", [0.002, 1.0], ids=["fast-stages", "slow-alone"])
def test_parts_are_the_time_of_workers_and_compute_on_no_more_cpus_than_there_are(
    workers, cpus, stage_s
):
    parts_s = {"read": stage_s / 4, "decode": stage_s, "collate": stage_s / 2}
    cell = to_cell(Way("none", 8, workers), [passes(1.0, parts_s=parts_s)], cpus)
    assert cell.parts_s["decode"] == pytest.approx(2 * cell.parts_s["collate"])
    computing_s = cell.parts_s["decode"] + cell.parts_s["collate"]
    assert cell.rate * computing_s <= cpus * 1.0001
    if stage_s < 0.01:
        assert cell.parts_s["decode"] == pytest.approx(stage_s)
        assert sum(cell.parts_s.values()) == pytest.approx(max(1, workers) * 1.0 / 8)


# Advice.

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
    said = told(own, decoder=None)
    assert said.startswith("Use 2 workers (num_workers=2): 1,939 ± 7 samples/s, 1.82 (1.81 to 1.8")
    assert "One sample takes 580 µs of a worker: computing in __getitem__ 86 %, collate 7" in said


@pytest.mark.parametrize("times_ms", [{0: 10.0, 1: 20.0, 2: 15.0}, {0: 50.0}])
def test_no_way_is_compared_with_itself_and_one_alone_is_not_called_the_best(times_ms):
    said = told(cells(times_ms))
    assert said.startswith("Use" if len(times_ms) > 1 else "Only tried:")
    assert "no workers (data.workers=0)" in said.splitlines()[0]
    assert "without workers it is" not in said
    assert "the rate without workers" not in said


def test_where_passes_differ_the_answer_stands_first_and_its_doubt_second():
    spread = {0: (75.5, 18.7), 2: (29.0, 8.0), 4: (26.2, 7.6)}
    some = [cells({n: time_ms}, sd_ms=sd_ms)[0] for n, (time_ms, sd_ms) in spread.items()]
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
        ("read", "exact", "Each image waits 1.00 ms for storage, or for something else.\nA copy"),
        ("decode", "exact", "data.decoder=fast takes less time, but"),
        ("transform", "exact", "without any, at most 11.0 times as fast"),
    ],
    ids=["read", "decode", "transform"],
)
def test_help_is_offered_for_the_largest_part(part, decoder, advice):
    parts_s = dict.fromkeys(PARTS, 25e-6) | {part: 1e-3}
    assert advice in told(cells(parts_s=parts_s), decoder=decoder)
    # 1,939 images/s x 0.52 ms are one CPU's work; 3,800 images/s are that of two.
    assert "busy with it" not in told(cells())
    assert "The CPUs are busy with it" in told(cells({2: 17.0}))
