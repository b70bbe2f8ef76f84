"""Having the system forget files, and knowing whether it did; with real files."""

import os
from pathlib import Path

import pytest

from hpcdist.bench.dataload.sources import forget, temperature


@pytest.fixture
def paths(tmp_path):
    found = [tmp_path / f"{number}.jpg" for number in range(3)]
    for path in found:
        path.write_bytes(os.urandom(10_000))
    return [str(path) for path in found]


def test_written_files_are_warm_until_they_are_forgotten(paths):
    if temperature(paths) == "unknown":
        pytest.skip("this file system does not say what is in memory")
    assert temperature(paths) == "warm"
    forget(paths)
    assert temperature(paths) == "cold"
    assert [len(Path(path).read_bytes()) for path in paths] == [10_000] * 3
    assert temperature(paths) == "warm"


def test_files_that_are_gone_are_left_to_whoever_loads_them(tmp_path):
    gone = [str(tmp_path / "gone.jpg")]
    forget(gone)
    assert temperature(gone) == "unknown"
