"""Agents that sample what their ranks use: of CPUs in real runs, of GPUs from a known driver."""

import contextlib
import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from rank_places import place
from waiting import wait_for

from hpcdist.agent import sampler
from hpcdist.agent.sampler import CpuReader, UsageSampler
from hpcdist.rank.context import RankOrder
from hpcdist.runs import nodes
from hpcdist.runs.events import read_events
from hpcdist.runs.run import Run
from hpcdist.summary import summarize

LOAD = """
import os, time
from hpcdist.rank import context as rank

context = rank.current()
file = context.run.usage_file(context.node_rank, context.attempt)

def wait_for_windows(number):
    end = number + count()
    while count() < end:
        time.sleep(0.02)

def count():
    return file.exists() and file.read_text().count('"event":"usage"')

wait_for_windows(1)
if context.node_rank == 0:
    pid = os.fork()
    end_s = time.process_time() + 0.3
    while time.process_time() < end_s:
        pass
    if pid == 0:
        os._exit(0)
    os.wait()
wait_for_windows(2)
"""


def usage(run, node):
    """What a node had at its begin, and its windows."""
    events = read_events(run.usage_file(node))
    windows = [event for event in events if event["event"] == "usage"]
    return next(event for event in reversed(events) if event not in windows), windows


def test_each_agent_on_a_machine_samples_its_own_ranks_only(launch, write_script):
    launched = launch(write_script(LOAD), nodes=2, usage_s=0.1)
    assert launched.verdict().kind == "done", launched.logs()
    used_s = []
    for node in range(2):
        begin, windows = usage(launched.run, node)
        assert (begin["node"], "gpus" in begin) == (node, False)
        assert begin["num_cpus"] == len(begin["cpus"]) > 0
        used_s.append(sum(one["wall_s"] * one.get("cpus_busy", 0) for one in windows))
    assert 0.5 < used_s[0] - used_s[1] < 1.5
    assert summarize([launched.run], {}).runs[0].usage.num_cpus > 0


def test_sampling_that_fails_does_not_end_a_run(launch, write_script):
    launched = launch(write_script("print(1)"), agents=[])
    launched.run.usage_file(0).mkdir()  # in the place of the file
    launched.start_agent(0)
    assert launched.verdict().kind == "done"
    said = "what the ranks use is not sampled any more: IsADirectoryError"
    assert said in launched.run.agent_log_file(0).read_text()


class NvmlError(Exception):
    value = 999


class GpuIsLostError(NvmlError):
    value = 15


def ask(answer):
    """GPU-fake-2 has fallen silent."""

    def call(gpu, **_):
        if gpu.endswith("2"):
            raise NvmlError
        return answer

    return call


def known(uuid):
    if uuid.endswith("9"):
        raise NvmlError
    return uuid


DRIVER = SimpleNamespace(
    NVMLError=NvmlError,
    nvmlMemory_v2=2,
    nvmlDeviceGetHandleByUUID=known,
    nvmlDeviceGetName=lambda _: "Fake 80GB",
    nvmlSystemGetDriverVersion=lambda: "550.54.15",
    nvmlDeviceGetMemoryInfo=lambda *_, **__: SimpleNamespace(total=80 << 30, used=1 << 28),
    nvmlDeviceGetUtilizationRates=ask(SimpleNamespace(gpu=60)),
    NVML_ERROR_GPU_IS_LOST=GpuIsLostError.value,
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
    NVML_VOLATILE_ECC=0,
    nvmlEventTypeXidCriticalError=8,
    nvmlDeviceGetTotalEccErrors=lambda *_: 3,
    nvmlEventSetCreate=list,
    nvmlDeviceRegisterEvents=lambda *_: None,
    nvmlEventSetWait=Mock(side_effect=NvmlError),
)


@pytest.mark.parametrize(
    ("ecc", "xids", "found"),
    [
        pytest.param([NvmlError(), GpuIsLostError()], [], ["GPU 0 was lost"], id="lost"),
        pytest.param([NvmlError()] * 2, [31, 79, 13], ["Xid 79"], id="events, also of programs"),
    ],
)
def test_faults_of_gpus_since_the_begin_of_a_run_are_found_and_programs_are_not_to_blame(
    ecc, xids, found
):
    events = [SimpleNamespace(eventData=xid) for xid in xids]
    driver = SimpleNamespace(**vars(DRIVER))
    driver.nvmlDeviceGetTotalEccErrors = Mock(side_effect=ecc)
    driver.nvmlEventSetWait = Mock(side_effect=[*events, NvmlError()])
    assert list(sampler.GpuReader(driver, ["GPU-fake-1"]).faults()) == found


def test_gpus_are_sampled_in_the_order_in_which_a_run_has_them(tmp_path, monkeypatch):
    monkeypatch.setattr(sampler, "nvml", lambda: contextlib.nullcontext(DRIVER))
    monkeypatch.setattr(sampler, "_FASTEST_S", 0.01)
    run = Run.create(tmp_path, "x")
    order = RankOrder(run_path=str(run.path), environment={}, **place().place_fields())
    living, logged = {0: os.getpid()}, []
    uuids = ["GPU-fake-1", "GPU-fake-9", "GPU-fake-2"]
    sampling = UsageSampler(run, every_s=0.01, log=logged.append)
    sampling.begin([order], lambda: living, uuids)
    file = run.usage_file(0)
    wait_for(lambda: file.exists() and len(read_events(file)) > 3)
    monkeypatch.setattr(DRIVER, "nvmlDeviceGetTotalEccErrors", lambda *_: 7)
    living.clear()
    sampling.end()  # they may have ended because of what is found now
    events = nodes.read([nodes.ledger_file()])
    assert [(one.kind, one.host, one.run) for one in events] == [("gpu", order.host, run.id)] * 2
    assert "GPU 1 had 4 memory errors that ECC could not correct" in events[1].words
    assert (logged, sampling.gpu_share) == ([], None)
    begin, windows = usage(run, 0)
    assert [gpu["uuid"] for gpu in begin["gpus"]] == [uuids[0], uuids[2]]
    assert [gpu.get("utilization") for gpu in windows[0]["gpus"]] == [0.6, None]
    assert windows[0]["gpus"][0]["memory_bytes"] == 1 << 28


def test_time_counts_on_the_cpus_that_ranks_are_bound_to(tmp_path):
    path = tmp_path / "stat"

    def write(**busy_s):
        rows = [
            f"{cpu} {int(time_s * 50)} 0 {int(time_s * 30)} 9999 7 0 0 {int(time_s * 20)} 0 0"
            for cpu, time_s in busy_s.items()
        ]
        path.write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 0 0", *rows, "intr 12 3", ""]))

    write(cpu0=10.0, cpu1=20.0, cpu3=5.0)  # one is offline
    reader = CpuReader([1, 3], proc_stat=path)
    assert reader.num_cpus == 3
    write(cpu0=12.0, cpu1=23.0, cpu3=6.0)
    assert reader.sample([], 4.0) == {"bound_cpus_busy": 1.0}
