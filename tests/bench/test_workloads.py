"""Benchmarks by real ranks: what they measure, what the summary says of it, and how they end."""

import os
import re
import signal
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from PIL import Image
from summary_text import in_words, printed
from torch import nn

from hpcdist.base.errors import HpcdistError
from hpcdist.bench.allreduce import measure
from hpcdist.bench.inference.measure import Strategy
from hpcdist.bench.inference.workload import to_cell
from hpcdist.job.spec import Allreduce
from hpcdist.summary import summarize, to_json


def events_of(launched, kind, rank=0):
    return [event for event in launched.events(rank) if event["event"] == kind]


def table_of(launched):
    (run,) = to_json(summarize([launched.run], {}))
    return {table["name"]: table["cells"] for table in run["benchmark"]["tables"]}["all_reduce"]


def test_sizes_are_measured_and_summed_up(submit_job):
    few = ("allreduce.iterations=4", "allreduce.warmup=1", "allreduce.sizes=[4,65536]")
    launched = submit_job("allreduce", *few, gpus=3)
    assert launched.verdict().state == "done", launched.everything_said()
    cells = events_of(launched, "cell")
    assert [cell["keys"] for cell in cells] == [{"size_bytes": 4}, {"size_bytes": 65536}]
    for cell in cells:
        more = cell["more"]
        assert cell["repeats"] == 4
        assert 0 < more["median_time_s"] <= more["p95_time_s"]
        size = cell["keys"]["size_bytes"]
        assert more["algorithm_bytes_per_s"] * cell["mean_time_s"] == pytest.approx(size)
        assert cell["rate"] == pytest.approx(4 / 3 * more["algorithm_bytes_per_s"])
    assert not any(events_of(launched, "cell", rank) for rank in (1, 2))
    assert len(table_of(launched)) == 2
    assert re.match(
        r"allreduce: all-reduce over 3 ranks: [\d.]+ .?s with 4 B \(p95 [\d.]+ .?s\), at most "
        r"[\d.]+ .B/s bus bandwidth, with 64 KiB; all sums right\.",
        in_words([launched.run]),
    )


def test_a_benchmark_that_is_told_to_stop_keeps_what_it_has(submit_job):
    sizes = f"allreduce.sizes={[4 * number for number in range(1, 401)]}"
    many = (sizes, "allreduce.iterations=1000000", "allreduce.max_time_s=0.2")
    launched = submit_job("allreduce", *many, gpus=2)
    launched.wait(lambda: "bus" in launched.log(0))
    os.kill(launched.agent_pid(0), signal.SIGUSR2)
    verdict = launched.verdict()
    assert (verdict.state, verdict.exit_code_of_run) == ("preempted", 75)
    assert "checkpoint" not in verdict.message
    measured = len(events_of(launched, "cell"))
    assert 0 < measured < 400
    *_, note = events_of(launched, "note")
    assert note["message"] == f"stopped when it was asked to, after {measured} of 400 measurements"
    assert len(table_of(launched)) == measured


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_measurement_has_as_many_calls_as_there_is_time_for(group):
    effort = Allreduce(iterations=2_000_000, warmup=2, max_time_s=0.01)
    cell = measure.measure_all_reduce(torch.zeros(8), effort)
    assert 3 <= cell.repeats < 2_000_000
    assert cell.rate == 0.0  # one rank sends nothing


def added_up(number, num_ranks, dtype=torch.float32, leave_out=()):
    """What an all-reduce gives, with rounding after each addition."""
    total = torch.zeros(number, dtype=dtype)
    for rank in range(num_ranks):
        own = torch.empty(number, dtype=dtype)
        measure._fill(own, rank=rank, num_ranks=num_ranks)
        if rank not in leave_out:
            total += own
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_ranks", [1, 3, 300])
def test_right_sums_pass_in_every_type(dtype, num_ranks):
    measure._require_sums(added_up(2_500, num_ranks, dtype), rank=0, num_ranks=num_ranks)


def test_a_rank_that_is_left_out_and_parts_in_exchanged_places_are_seen():
    for lost in range(4):
        with pytest.raises(measure.WrongSumError):
            measure._require_sums(added_up(64, 4, leave_out={lost}), rank=0, num_ranks=4)
    total = added_up(4_096, 4)
    exchanged = torch.cat([total[1_024:2_048], total[:1_024], total[2_048:]])
    with pytest.raises(measure.WrongSumError):
        measure._require_sums(exchanged, rank=0, num_ranks=4)


def test_the_error_names_the_rank_the_size_and_the_first_wrong_number(monkeypatch):
    monkeypatch.setattr(measure, "_BLOCK_NUMBERS", 64)
    total = added_up(1_000, 4)
    total[700] += 1
    total[701] = 0
    expected = (
        "rank 2 has wrong sums over 4 ranks, of 4,000 bytes: 2 of 1,000 numbers; "
        "the first, number 700, is 4 and must be 3"
    )
    with pytest.raises(measure.WrongSumError, match=f"^{expected}$"):
        measure._require_sums(total, rank=2, num_ranks=4)


# Loading data.

LIMIT_S = 120.0
"""Ranks and their workers, on machines that do other things too."""


@pytest.fixture
def pictures(tmp_path):
    """A folder of 2 classes with 12 pictures each, and two files that are none."""
    root = tmp_path / "pictures"
    for name, colour in (("cats", (200, 10, 10)), ("dogs", (10, 10, 200))):
        (root / name).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (24, 24), colour).save(root / name / f"{number:02}.jpg")
    return root


def submit_pictures(submit_job, root, *overrides, **options):
    return submit_job(
        "dataload",
        "data.name=image_folder",
        f"data.root={root}",
        "data.batch_size=4",
        "data.batches_to_check=3",
        "data.transform=none",
        *overrides,
        **options,
    )


def test_every_way_of_loading_is_timed_in_two_turns_and_summed_up(submit_job, pictures):
    launched = submit_pictures(
        submit_job,
        pictures,
        *("data.workers=[0,1]", "data.transform=[none,light]", "data.repeats=3"),
        gpus=2,
    )
    assert launched.verdict(LIMIT_S).state == "done", launched.everything_said()
    cells = events_of(launched, "cell")
    ways = [(cell["keys"]["transform"], cell["keys"]["workers"]) for cell in cells]
    forwards = [("none", 0), ("none", 1), ("light", 0), ("light", 1)]
    assert ways == [*forwards, *forwards[::-1]]
    assert [cell["repeats"] for cell in cells] == [2] * 4 + [3] * 4
    for cell in cells:
        assert cell["rate"] == pytest.approx(2 * 4 / cell["mean_time_s"])  # of both ranks
        assert cell["more"]["first_batch_time_s"] > 0
        assert set(cell["parts_s"]) == {"read", "decode", "transform", "collate", "hand_over"}

    summary = summarize([launched.run], {})
    told = to_json(summary)[0]["benchmark"]
    assert len(told["tables"][0]["cells"]) == 4
    first = told["conclusions"][0]
    assert re.match(r"Use (no|\d+) workers? \(data.workers=\d\): .* images/s with", first)
    text = in_words(summary)
    assert text.startswith(f"dataload: {first}"[:60])
    assert "loading image_folder by workers on each of 2 ranks, mean ± 95 %" in text


def test_a_data_set_of_the_users_is_measured_as_it_is(submit_job):
    launched = submit_job(
        "dataload",
        "data.dataset=own_data:make",
        *("data.workers=[0]", "data.batch_size=4", "data.batches_to_check=5", "data.repeats=2"),
        change="own_data:nothing",  # imports it
    )
    assert launched.verdict(LIMIT_S).state == "done", launched.everything_said()
    cells = events_of(launched, "cell")
    assert cells[0]["keys"] == {"batch_size": 4, "workers": 0}
    assert set(cells[0]["parts_s"]) == {"wait", "item", "collate", "hand_over"}
    (told,) = to_json(summarize([launched.run], {}))
    answer, least = told["benchmark"]["conclusions"]
    assert re.match(r"Only tried: no workers \(num_workers=0\): .* samples/s", answer)
    assert least.startswith("Loading keeps up with training steps of ")


# Inference.


def test_batches_are_timed_under_every_strategy_and_summed_up(submit_job):
    launched = submit_job(
        "inference",
        "inference.batch_sizes=[1,2]",
        "inference.repeats=4",
        "inference.precision=bf16-mixed",
        gpus=2,
    )
    assert launched.verdict().state == "done", launched.everything_said()
    cells = events_of(launched, "cell")
    measured = [(*cell["keys"].values(), cell["more"]["devices"]) for cell in cells]
    assert measured == [
        (1, "single", 1),
        (1, "data_parallel", 1),
        *((2, "single", 1), (2, "data_parallel", 1), (2, "process_per_gpu", 2)),
    ]
    for cell in cells:
        assert cell["repeats"] == 4
        size = cell["keys"]["batch_size"]
        assert cell["rate"] == pytest.approx(size / cell["mean_time_s"])
    notes = [event["message"] for event in events_of(launched, "note")]
    assert notes[1] == "process_per_gpu: not measured with 1 per batch, fewer than the 2 ranks"
    summary = summarize([launched.run], {})
    found = to_json(summary)[0]["benchmark"]
    assert len(found["tables"][0]["cells"]) == len(cells)
    assert found["conclusions"][1].startswith("data_parallel (1 device) shows no parallelism")
    assert "process_per_gpu (2 devices) " in found["conclusions"][2]
    assert re.match(r"inference: single reaches [\d,]+ images/s, with", printed(summary))


def test_a_model_that_gives_no_tensor_is_told_in_a_sentence():
    class Net(nn.Linear):
        def forward(self, images):
            return {"logits": super().forward(images)}

    context = SimpleNamespace(device="cpu", world_size=1, rank=0)
    with pytest.raises(HpcdistError, match="the model gives dict, must be a tensor"):
        Strategy("single", Net(4, 2), context, "fp32").call(torch.ones(1, 4))


def test_a_batch_takes_as_long_as_its_slowest_share():
    ranks = [[9.0, 1.0, 5.0], [9.0, 2.0, 3.0]]
    keys = {"batch_size": 8, "strategy": "process_per_gpu"}
    cell = to_cell(keys, 2, ranks)
    assert (cell.mean_time_s, cell.rate) == (3.5, 8 / 3.5)
    assert cell.more == {"devices": 2, "first_call_time_s": 9.0}
    assert to_cell(keys, 2, [ranks[0], None]).note == "out of memory"
