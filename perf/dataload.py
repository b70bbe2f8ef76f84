"""Loading images by hpcdist.data.FastImages beside PIL and torchvision, each in torch's DataLoader
with the same workers; and data in memory by the loader of the jobs beside torchvision's data set.

The faces are the made ones, 250 x 250 pixels; both sides have them in the page cache. Each side is
a process of its own (scripts/load_images.py), which times whole passes and tells its best. The
latency of opening a file is real: a preloaded library sleeps in each open.
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from sidebyside import SCRIPTS, Figures, Measure, compare, parse_options, run_command

from hpcdist.data.catalog import find_data_set, find_images
from hpcdist.job.spec import Data

_SLOW_FACES = 320


def load(side: str, options: dict[str, Any], variables: dict[str, str]) -> Figures:
    """Run one side."""
    words = [str(SCRIPTS / "load_images.py"), side, json.dumps(options)]
    figures: Figures = json.loads(run_command([sys.executable, *words], Path(), variables))
    return figures


def write_fashion(root: Path) -> None:
    """IDX files of FashionMNIST's size and layout, with random pixels."""
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    drawing = random.Random(0)
    for prefix, number in (("train", 60_000), ("t10k", 10_000)):
        pixels = struct.pack(">4I", 0x803, number, 28, 28) + drawing.randbytes(number * 784)
        labels = struct.pack(">2I", 0x801, number) + bytes(index % 10 for index in range(number))
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(pixels)
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)


def main() -> None:
    options = parse_options(__doc__, pairs=3, workers=[0, 1, 2], faces=768)
    find_data_set(Data(name="faces")).prepare(Data(name="faces"))
    parts = find_images(Data(name="faces"))
    assert parts is not None
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        library, source = Path(name) / "slow_open.so", SCRIPTS / "slow_open.c"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        write_fashion(Path(name))
        cases: list[tuple[str, dict[str, Any], dict[str, Any], float, dict[str, str]]] = []
        for workers in options.workers:
            plain = {"faces": options.faces, "workers": workers}
            light, fast = plain | {"transform": "light"}, plain | {"decode": "fast"}
            cases.append((f"faces, exact, light, {workers} workers", light, light, 1.9, {}))
            cases.append((f"faces, fast, {workers} workers", fast, plain, 2.5, {}))
        slow = {"faces": min(_SLOW_FACES, options.faces), "workers": 1}
        preloaded = {"LD_PRELOAD": str(library), "SLOW_FOLDER": str(parts.train.root)}
        preloaded["SLOW_OPEN_US"] = "10000"
        cases.append(("faces, 10 ms for each open, 1 worker", slow, slow, 15, preloaded))
        fashion = {"fashion": name, "samples": 20 * options.faces}
        cases.append(("FashionMNIST in memory", fashion, fashion, 50, {}))
        for title, ours, theirs, at_least, variables in cases:
            compare(
                title,
                [Measure(name="images", unit="images/s", at_least=at_least)],
                {
                    "hpcdist": partial(load, "ours", ours, variables),
                    "plain": partial(load, "plain", theirs, variables),
                },
                pairs=options.pairs,
            )


if __name__ == "__main__":
    main()
