"""The inference benchmark: real ranks that time a model."""

import re
from types import SimpleNamespace

import pytest
import torch
from summary_text import printed
from torch import nn

from hpcdist.base.errors import HpcdistError
from hpcdist.bench.inference.measure import Strategy
from hpcdist.bench.inference.workload import to_cell
from hpcdist.summary import summarize, to_json


def test_batches_are_timed_under_every_strategy_and_summed_up(submit_job):
    launched = submit_job(
        "inference",
        "inference.batch_sizes=[1,2,600]",
        "inference.repeats=4",
        "inference.precision=bf16-mixed",
        gpus=2,
    )
    assert launched.verdict().state == "done", launched.everything_said()
    cells = [event for event in launched.events(0) if event["event"] == "cell"]
    measured = [(*cell["keys"].values(), cell["more"]["devices"]) for cell in cells]
    assert measured == [
        (1, "single", 1),
        (1, "data_parallel", 1),
        *((2, "single", 1), (2, "data_parallel", 1), (2, "process_per_gpu", 2)),
        *((600, "single", 1), (600, "data_parallel", 1), (600, "process_per_gpu", 2)),
    ]
    for cell in cells:
        assert cell["repeats"] == 4
        size = cell["keys"]["batch_size"]
        assert cell["rate"] == pytest.approx(size / cell["mean_time_s"])
    notes = [event["message"] for event in launched.events(0) if event["event"] == "note"]
    assert "on CPUs it calls the model" in notes[0]
    assert notes[1] == ("process_per_gpu: not measured with 1 per batch, fewer than the 2 ranks")

    summary = summarize([launched.run], {})
    found = to_json(summary)[0]["benchmark"]
    assert len(found["tables"][0]["cells"]) == len(cells)
    assert found["conclusions"][1].startswith("data_parallel (1 device) shows no parallelism")
    assert "process_per_gpu (2 devices) " in found["conclusions"][2]
    assert re.match(r"inference: single reaches [\d,]+ images/s, with", printed(summary))


@pytest.mark.parametrize("strategy", ["single", "process_per_gpu"])
def test_a_model_that_gives_no_tensor_is_told_in_a_sentence(strategy):
    class Net(nn.Linear):
        def forward(self, images):
            return {"logits": super().forward(images)}

    context = SimpleNamespace(device="cpu", world_size=1, rank=0)
    with pytest.raises(HpcdistError, match="the model gives dict, must be a tensor"):
        Strategy(strategy, Net(4, 2), context, "fp32").call(torch.ones(1, 4))


def test_a_batch_takes_as_long_as_its_slowest_share():
    ranks = [[9.0, 1.0, 5.0], [9.0, 2.0, 3.0]]
    keys = {"batch_size": 8, "strategy": "process_per_gpu"}
    cell = to_cell(keys, 2, ranks)
    assert (cell.mean_time_s, cell.rate) == (3.5, 8 / 3.5)
    assert cell.more == {"devices": 2, "first_call_time_s": 9.0}
    assert to_cell(keys, 2, [ranks[0], None]).note == "out of memory"
