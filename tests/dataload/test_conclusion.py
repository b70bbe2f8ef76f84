"""How many workers, what the bottleneck is, and what would help: in words, from known figures."""

import pytest

from hpcdist.dataload.conclusion import conclude
from hpcdist.dataload.figures import StepTime

TIMES_MS = {0: 60.0, 1: 58.0, 2: 33.0, 4: 32.9}


@pytest.fixture
def cells(cell):
    def make(times_ms=TIMES_MS, **options):
        return [cell(workers, time_ms, **options) for workers, time_ms in times_ms.items()]

    return make


def told(cells, *steps):
    return "\n".join(conclude(cells, steps))


def test_the_fewest_workers_that_none_beats_are_recommended_with_the_gain(cells):
    assert told(cells()).splitlines()[0] == (
        "Transform none: with 2 workers 1,939 images/s, 33 ms per batch of 64, 1.82 times the rate "
        "without workers. More workers gain nothing on its 2 CPUs: with 4 workers it is 1.00 times "
        "that."
    )


@pytest.mark.parametrize(
    ("sd_ms", "workers"), [(0.1, 4), (5.0, 2)], ids=["clear-gain", "within-the-noise"]
)
def test_a_gain_within_the_noise_is_no_gain(cells, sd_ms, workers):
    times_ms = {1: 60.0, 2: 33.0, 4: 31.0}
    assert f"with {workers} workers" in told(cells(times_ms, sd_ms=sd_ms)).split(".")[0]


def test_more_workers_than_were_tried_are_proposed_only_where_there_are_cpus(cells):
    times_ms = {0: 60.0, 2: 33.0}
    assert "its 8 CPUs may have room for them: data.workers=4." in told(cells(times_ms, cpus=8.0))
    assert "Its 2 CPUs are in use then." in told(cells(times_ms, cpus=2.0))
    shared = told(cells(times_ms, cpus=8.0, ranks=2))
    assert "the 4 CPUs of each rank may have room" in shared


def test_without_workers_may_be_best(cells):
    first = told(cells({0: 0.01, 1: 2.0, 2: 1.5})).splitlines()[0]
    assert first.startswith("Transform none: without workers 6,400,000 images/s, 10 µs per batch")
    assert "with 2 workers it is 0.01 times that." in first


def test_the_slower_of_model_and_loading_is_the_bottleneck(cells):
    slow = StepTime(batch_size=64, mean_time_s=0.1, model="resnet50")
    fast = StepTime(batch_size=64, mean_time_s=0.011)
    assert (
        "Loading is not the bottleneck, the model is: a step of resnet50 takes 100 ms, a batch "
        "33 ms, ready before it is wanted."
    ) in told(cells(), slow)
    assert "the model waits 67% of the time." in told(cells(), fast)
    assert "keeps up with training steps of 33 ms or more per batch of 64" in told(cells())


def test_a_model_on_the_same_cpus_is_told_to_slow_loading_down(cells):
    """The images of a batch take 64 x 0.52 ms of work, on 2 CPUs."""
    step = StepTime(batch_size=64, mean_time_s=0.1, model="mlp", on_cpus=True)
    assert "together a step takes about 117 ms." in told(cells(), step)


def test_a_step_time_of_another_batch_size_is_not_compared(cells):
    step = StepTime(batch_size=32, mean_time_s=0.1)
    assert "keeps up with training steps" in told(cells(), step)


@pytest.mark.parametrize(
    ("part", "options", "advice"),
    [
        ("read", {}, "Reading a file takes 1 ms: more at once (data.reads=16)"),
        ("read", {"cache": False}, "data.cache=auto would save reading and decoding"),
        ("decode", {"decoder": "pil"}, "data.decoder=exact decodes to the same pixels"),
        ("decode", {"decoder": "exact"}, "data.decoder=fast decodes in less time"),
        ("transform", {}, "without any, at most 11.0 times as fast"),
        ("hand_over", {"handover": "float32"}, "data.handover=uint8 hands a quarter"),
    ],
    ids=["read", "read-uncached", "decode-pil", "decode-exact", "transform", "hand-over"],
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


def test_the_slower_node_is_named_and_is_what_the_rest_is_about(cells):
    both = [*cells(), *cells({2: 66.0}, node=1)]
    lines = told(both).splitlines()
    assert lines[0].startswith("Node 1 (n1) loads 970 images/s at its best, node 0 (n0) 2.01 times")
    assert lines[1].startswith("Transform none: with 2 workers 970 images/s")
    alike = [*cells(), *cells({2: 33.5}, node=1)]
    assert "Node" not in told(alike)


@pytest.mark.parametrize(
    ("first_files", "words"),
    [
        ("cold", "files that came from storage"),
        ("warm", "in the memory of the system already"),
        ("unknown", "cannot be told here"),
    ],
)
def test_a_slow_first_pass_is_told_with_what_is_known_of_its_files(cells, first_files, words):
    options = {"first_time_s": 0.1, "first_files": first_files}
    assert words in told(cells({2: 33.0}, **options))
    assert "first pass" not in told(cells({2: 33.0}))


def test_nothing_measured_says_nothing():
    assert conclude([], []) == []


def test_reads_that_overlap_are_told_to(cells):
    """6,400 images/s in 2 workers that each take 10 ms to read a file: 32 reads at once in each."""
    parts_s = {"read": 10e-3, "decode": 50e-6}
    said = told(cells({2: 10.0}, parts_s=parts_s, reads=32))
    assert "each worker has about 32 reads under way already, more at once (data.reads=64)" in said


def test_more_reads_are_proposed_than_there_are_by_themselves(cells):
    """1,600 images/s of a worker that takes 10 ms to read a file: 16 reads at once."""
    said = told(cells({1: 40.0}, parts_s={"read": 10e-3, "decode": 50e-6}))
    assert "about 16 reads under way already, more at once (data.reads=32)" in said


def test_a_gain_beyond_what_can_be_measured_is_not_given_as_a_number(cells):
    parts_s = {"read": 10e-3, "decode": 1e-3, "collate": 1e-6}
    said = told(cells({1: 40.0}, parts_s=parts_s, cache=False))
    assert "where the decoded images fit in memory: many times as fast." in said


def test_what_was_compared_and_gains_nothing_is_told_and_not_advised(cells):
    """A difference of 25 % with an sd of a third of the mean is none."""
    uint8 = cells({2: 40.0}, handover="uint8", sd_ms=13.0)
    float32 = cells({2: 32.0}, handover="float32", sd_ms=13.0, parts_s={"collate": 1e-3})
    said = told([*uint8, *float32])
    assert "data.handover: float32 and uint8 load alike, all else as above." in said
    assert "a quarter of the bytes" not in said
