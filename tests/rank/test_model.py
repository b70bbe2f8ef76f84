"""What is known of a model: its digests, and its number of operations, held against peaks."""

import pytest
import torch
from torch import nn

from hpcdist.machine.peaks import peak_flops_per_s
from hpcdist.rank.model import count_flops, digest_of
from hpcdist.summary import summarize
from hpcdist.summary.report.sentences import remarks


def test_a_digest_notices_every_bit_and_every_exchange():
    numbers = torch.arange(2_140_000, dtype=torch.float32) / 7
    whole = digest_of([numbers])
    assert digest_of([numbers.clone()]) == whole
    others = [numbers[:-1], torch.cat([numbers[1 << 20 :], numbers[: 1 << 20]])]
    for place in (0, 1_048_575, 1_048_576, 2_139_999):
        for bit in (1, 1 << 15, -(1 << 31)):
            others.append(numbers.clone())
            others[-1].view(torch.int32)[place] ^= bit
    others.append(numbers.clone())
    others[-1][[3, 1_070_000]] = numbers[[1_070_000, 3]]
    assert whole not in map(digest_of, ([one] for one in others))


@pytest.mark.parametrize(
    "numbers",
    [
        torch.tensor([float("nan"), float("inf"), -0.0]),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
    ],
    ids=["nan", "16 bits", "channels_last"],
)
def test_equal_tensors_of_any_kind_have_equal_digests(numbers):
    assert digest_of([numbers]) == digest_of([numbers.clone().contiguous()])


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


def test_the_summary_names_the_step_and_the_rank_at_which_replicas_part(launch, write_script):
    launched = launch(write_script(PARTING), gpus=3, digest=2)
    assert launched.verdict().kind == "done", launched.log(0)
    (run,) = summarize([launched.run], {}).runs
    assert run.together
    assert 0 < run.phase_s["exposed_communication"] < run.step_time_s.mean
    assert run.parts_s["communication"] > 0
    assert run.cell is not None
    told = run.parting
    assert (told.step, told.equal_at, told.ranks, told.others) == (6, 4, [1], [0, 2])
    (remark,) = [text for text in remarks(run, is_alone=True) if "replicas" in text]
    assert remark.startswith(
        "replicas part at step 6: rank 1 has other parameters than ranks 0 and 2; at step 4 they"
    )
    found = [event for event in launched.events(0) if event["event"] == "digest"]
    assert [event["step"] for event in found] == [1, 2, 4, 6, 8, 10]
    assert len({event["parameters"] for event in found}) == len(found)


def test_a_layer_takes_two_operations_per_weight_forward_and_twice_that_backward():
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 10))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    # The first layer's input needs no gradient.
    assert count_flops(model, torch.randn(8, 64)) == 2 * (2 * 64 * 32 + 3 * 32 * 10)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("gpu", "precision", "tera"),
    [
        ("NVIDIA H200", "bf16-mixed", 989.5),
        ("NVIDIA H200 NVL", "bf16-mixed", 835.5),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.5),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("Tesla V100-SXM2-16GB", "fp16-mixed", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "fp32", None),
    ],
)
def test_the_peak_of_a_gpu_is_that_of_its_data_sheet(gpu, precision, tera):
    expected = None if tera is None else pytest.approx(tera * 1e12)
    assert peak_flops_per_s(gpu, precision) == expected
