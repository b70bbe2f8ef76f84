"""Digests of a model: what they notice, and what the summary makes of them."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hpcdist.rank.digest import MOST_PARTS, Digester, TensorDigests, part_places
from hpcdist.runs.events import EventWriter, read_events
from hpcdist.summary import summarize
from hpcdist.summary.report.remarks import remarks


def digest(tensor):
    (value,) = TensorDigests().take([tensor])
    return value


def test_a_digest_notices_every_bit_and_every_exchange():
    numbers = torch.arange(140_000, dtype=torch.float32) / 7
    whole = digest(numbers)
    assert digest(numbers.clone()) == whole
    for place in (0, 65_535, 65_536, 139_999):
        for bit in (1, 1 << 15, -(1 << 31)):
            changed = numbers.clone()
            changed.view(torch.int32)[place] ^= bit
            assert digest(changed) != whole
    exchanged = numbers.clone()
    exchanged[[3, 70_000]] = numbers[[70_000, 3]]
    assert digest(exchanged) != whole
    assert (
        digest(torch.cat([numbers[65_536:131_072], numbers[:65_536], numbers[131_072:]])) != whole
    )
    assert digest(numbers[:-1]) != whole


@pytest.mark.parametrize(
    "numbers",
    [
        torch.tensor([float("nan"), float("inf"), -0.0]),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.tensor(True),
        torch.empty(0),
    ],
    ids=["nan", "16 bits", "complex", "channels_last", "one", "none"],
)
def test_equal_tensors_of_any_kind_have_equal_digests(numbers):
    assert digest(numbers) == digest(numbers.clone()) == digest(numbers.contiguous())


def test_parts_are_as_deep_as_their_number_allows():
    few = ["0.weight", "0.bias", "1.weight"]
    assert [*part_places(few)] == few
    blocks = [f"layers.{n}.{part}.weight" for n in range(40) for part in "abcd"]
    places = part_places(blocks)
    assert [*places][:2] == ["layers.0", "layers.1"]
    assert places["layers.1"] == [4, 5, 6, 7]
    flat = part_places([f"w{n}" for n in range(1_000)])
    assert len(flat) <= MOST_PARTS
    assert sorted(place for own in flat.values() for place in own) == [*range(1_000)]


def test_a_wrapped_model_has_the_digests_of_the_model(tmp_path):
    model = nn.Linear(2, 1)
    for number, wrapped in enumerate([model, nn.DataParallel(model)]):
        events = EventWriter(tmp_path / str(number))
        context = SimpleNamespace(events=events, device="cpu")
        Digester(context, SimpleNamespace(begin=lambda: None), wrapped, first_step=0).begin()
        events.close()
    first, second = (read_events(tmp_path / name).events for name in "01")
    assert first[0]["parts"] == second[0]["parts"] == ["weight", "bias"]
    assert first[1]["parameters"] == second[1]["parameters"]


PARTING = """
import torch
from torch import nn
from hpcdist import record

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
model = nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
record.start(model=model)
torch.manual_seed(rank)
for step, images in enumerate(record.batches([torch.randn(4, 8) for _ in range(10)])):
    optimizer.zero_grad()
    loss = model(images).square().mean()
    loss.backward()
    optimizer.step()
    if step == 4 and rank == 1:
        net[2].weight.data[0, 3] += 1e-7
    record.step(samples=4, loss=loss)
"""


def test_the_summary_names_the_step_the_rank_and_the_part_in_which_replicas_part(
    launch, write_script
):
    launched = launch(write_script(PARTING), gpus=3, digest=2)
    assert launched.verdict().kind == "done", launched.log(0)
    (run,) = summarize([launched.run], {}).runs
    told = run.parting
    assert (told.step, told.equal_at, told.ranks, told.others) == (6, 4, [1], [0, 2])
    assert told.first_part == "2.weight"
    (remark,) = [text for text in remarks(run, is_alone=True) if "replicas" in text]
    assert remark.startswith(
        "replicas part at step 6: rank 1 has other parameters than ranks 0 and 2, first in 2.weight"
    )
    assert remark.endswith("; at step 4 they were equal")
    found = [event for event in launched.events(0) if event["event"] == "digest"]
    assert [event["step"] for event in found] == [1, 2, 4, 6, 8, 10]
    assert len({event["batch"] for event in found}) == len(found)
