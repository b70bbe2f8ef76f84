"""Small data sets in the real IDX format, in torchvision's layout."""

import random
import struct

import pytest

FOLDERS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}


@pytest.fixture
def write_idx_data(tmp_path):
    """Write a data set of random images under a new root; returns the root."""

    def write(name="mnist", *, num_train=40, num_test=12):
        raw = tmp_path / "data" / FOLDERS[name] / "raw"
        raw.mkdir(parents=True)
        for prefix, number in (("train", num_train), ("t10k", num_test)):
            pixels = random.Random(number).randbytes(number * 28 * 28)
            labels = bytes(index % 10 for index in range(number))
            contents = {
                "images-idx3": struct.pack(">4I", 0x803, number, 28, 28) + pixels,
                "labels-idx1": struct.pack(">2I", 0x801, number) + labels,
            }
            for kind, content in contents.items():
                (raw / f"{prefix}-{kind}-ubyte").write_bytes(content)
        return tmp_path / "data"

    return write
