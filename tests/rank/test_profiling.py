"""Profiled steps: what computing hides of communication, from intervals that are known."""

import gzip
import json
from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

from hpcdist.rank.profiling import divide
from hpcdist.summary import summarize


def event(name, begin, end, *, device=DeviceType.CPU):
    span = SimpleNamespace(start=begin, end=end)
    return SimpleNamespace(name=name, time_range=span, device_type=device)


def test_communication_is_divided_by_what_is_computed_at_the_same_time():
    on_cpu = [
        event("aten::addmm", 0, 10),
        event("aten::mm", 2, 4),  # within the other
        event("gloo:all_reduce", 6, 14),
        event("gloo:all_reduce", 12, 20),
        event("aten::mul", 18, 30),
        event("c10d::allreduce_", 6, 20),
    ]
    assert divide(on_cpu, on_gpu=False) == (14.0, pytest.approx(6.0))
    kernels = [
        event("ncclDevKernel_AllReduce_Sum_f32_RING", 5, 15, device=DeviceType.CUDA),
        event("ampere_sgemm_128x64_tn", 0, 8, device=DeviceType.CUDA),
        event("aten::addmm", 0, 100),
    ]
    assert divide(kernels, on_gpu=True) == (10.0, pytest.approx(3.0))
    assert divide([], on_gpu=True) == (0.0, 0.0)


PROFILED = """
import torch
from torch import nn
from hpcdist import record

torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
record.start(model=model)
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    record.step(samples=4)
"""


def test_a_profiled_run_has_a_trace_of_each_rank_and_its_first_window_to_itself(
    launch, write_script
):
    launched = launch(write_script(PROFILED), gpus=2, profile_steps=2)
    assert launched.verdict().kind == "done", launched.log(0)
    assert launched.log(0) == ""
    (summary,) = summarize([launched.run], {}).runs
    assert summary.communication.by == "profiler"
    assert summary.communication.whole_s > 0
    assert summary.traces == [f"traces/rank-0000{rank}.json.gz" for rank in range(2)]
    trace = json.loads(gzip.decompress((launched.run.path / summary.traces[0]).read_bytes()))
    assert any(event["name"] == "gloo:all_reduce" for event in trace["traceEvents"])
    first, *_ = [event for event in launched.events(0) if event["event"] == "steps"]
    assert first["steps"] == 3 + 2
