"""Loading images beside PIL, torchvision and torch's DataLoader with the same workers, and beside
webdataset where it is installed.

The faces are the made ones, 250 x 250 pixels; both sides have them in the page cache. Each side is
a process of its own, which times whole passes and tells its best. The latency of opening a file is
real: a preloaded library sleeps in each open.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from commands import SCRIPTS
from sidebyside import Figures, Measure, compare, option_parser, print_machine

from hpcdist.data.catalog import find_data_set, find_images
from hpcdist.job.spec import Data

_MB = Measure(name="memory", unit="MB PSS per worker")
_CPU = Measure(name="cpu", unit="µs CPU time per image")
_FACES = 768
_SLOW_FACES = 320


def main() -> None:
    parser = option_parser(__doc__, pairs=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    print_machine()
    find_data_set(Data(name="faces")).prepare(Data(name="faces"))
    for workers in options.workers:
        faces = ["--samples", str(_FACES), "--workers", str(workers)]
        light, fast = [*faces, "--transform", "light"], [*faces, "--decoder", "fast"]
        _compare(f"exact, light, {workers} workers", light, light, 1.6, options.pairs)
        _compare(f"fast, none, {workers} workers", fast, faces, 2.5, options.pairs)
        _compare(
            f"fast, none, uint8 on the host, {workers} workers, beside libjpeg-turbo alone",
            [*fast, "--raw"],
            faces,
            0.8,
            options.pairs,
            peer="bare",
        )
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        _compare_shards(Path(name), options.workers, options.pairs)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        _compare_slow_opens(Path(name), options.pairs)
        _write_fashion(Path(name))
        fashion = ["--name", "fashion_mnist", "--root", name]
        _compare("FashionMNIST, 0 workers", fashion, fashion, 50, options.pairs)


def _compare_shards(folder: Path, workers: list[int], pairs: int) -> None:
    """Beside webdataset, for who has installed it."""
    if find_spec("webdataset") is None:
        print("\nwebdataset is not installed (pip install webdataset): left out")
        return
    _write_shards(folder)
    for number in workers:
        for transform in ("none", "light"):
            faces = ["--samples", str(_FACES), "--workers", str(number), "--transform", transform]
            _compare(
                f"exact, {transform}, {number} workers, beside webdataset",
                faces,
                [*faces, "--shards", str(folder)],
                None,
                pairs,
                peer="webdataset",
            )


def _write_shards(folder: Path) -> None:
    """The files that the other side reads one by one, a tar file for every 96 of them."""
    from webdataset import ShardWriter

    parts = find_images(Data(name="faces", train_samples=_FACES))
    assert parts is not None
    files = parts.train
    with ShardWriter(f"{folder}/faces-%02d.tar", maxcount=96, verbose=0) as shards:
        for index, path in enumerate(files.paths):
            content = (files.root / path).read_bytes()
            shards.write({"__key__": f"{index:06}", "jpg": content, "cls": files.labels[index]})


def _compare_slow_opens(folder: Path, pairs: int) -> None:
    library = folder / "slow_open.so"
    source = SCRIPTS / "slow_open.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    parts = find_images(Data(name="faces"))
    assert parts is not None
    for latency_ms, target in ((10, 15), (50, None)):
        variables = {
            "LD_PRELOAD": str(library),
            "SLOW_FOLDER": str(parts.train.root),
            "SLOW_OPEN_US": str(latency_ms * 1000),
        }
        arguments = ["--samples", str(_SLOW_FACES), "--workers", "1", "--passes", "1"]
        _compare(
            f"{latency_ms} ms per open, exact, none, 1 worker",
            arguments,
            arguments,
            target,
            min(pairs, 2),
            variables=variables,
        )


def _compare(
    title: str,
    ours: list[str],
    peers: list[str],
    target: float | None,
    pairs: int,
    *,
    peer: str = "plain",
    variables: dict[str, str] | None = None,
) -> None:
    measures = [Measure(name="images", unit="images/s", at_least=target), _CPU]
    if "--workers" in ours and ours[ours.index("--workers") + 1] != "0" and peer != "bare":
        measures.append(_MB)
    sides = {
        "hpcdist": partial(_load, "ours", ours, variables or {}),
        peer: partial(_load, peer, peers, variables or {}),
    }
    compare(title, measures, sides, pairs=pairs)


def _load(side: str, arguments: list[str], variables: dict[str, str]) -> Figures:
    done = subprocess.run(
        [sys.executable, SCRIPTS / "load_images.py", side, *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: Figures = json.loads(done.stdout)
    return figures


def _write_fashion(root: Path) -> None:
    """IDX files of FashionMNIST's size and layout, with random pixels."""
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    drawing = random.Random(0)
    for prefix, number in (("train", 60_000), ("t10k", 10_000)):
        pixels = struct.pack(">4I", 0x803, number, 28, 28) + drawing.randbytes(number * 784)
        labels = struct.pack(">2I", 0x801, number) + bytes(index % 10 for index in range(number))
        for kind, content in (("images-idx3", pixels), ("labels-idx1", labels)):
            (raw / f"{prefix}-{kind}-ubyte").write_bytes(content)


if __name__ == "__main__":
    main()
