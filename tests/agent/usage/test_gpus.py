"""What is read of GPUs, from a driver whose figures are known."""

import json
import os
import subprocess
import sys

import pytest

from hpcdist.agent.sampler import GpuReader

READ = """
import json, sys, msgspec
from hpcdist.agent.sampler import GpuReader
from hpcdist.machine.gpus import nvml
with nvml() as library:
    reader = GpuReader(library, sys.argv[1:])
    found = reader.sample()
print(json.dumps(msgspec.to_builtins([reader.facts, found])))
"""


@pytest.fixture
def read(driver):
    """What a process finds that has the driver: GPUs' facts, and a sample."""

    def found(*uuids):
        done = subprocess.run(
            [sys.executable, "-c", READ, *uuids],
            env=os.environ | {"LD_LIBRARY_PATH": str(driver)},
            stdout=subprocess.PIPE,
            check=True,
        )
        return json.loads(done.stdout)

    return found


def test_a_gpu_tells_its_use_and_one_that_the_driver_does_not_know_is_left_out(read):
    (facts,), (sample,) = read("MIG-GPU-fake-0/1/0", "GPU-fake-0")
    assert facts == {
        "uuid": "GPU-fake-0",
        "name": "Fake 80GB",
        "memory_bytes": 80 * 2**30,
        "driver": "550.54.15",
    }
    assert sample == {"utilization": 0.6, "memory_bytes": 2**28}


def test_without_a_gpu_or_a_driver_nothing_is_read(tmp_path):
    assert GpuReader(None, []).sample() == []
    done = subprocess.run(
        [sys.executable, "-c", READ, "GPU-fake-0"],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert json.loads(done.stdout) == [[], []]
