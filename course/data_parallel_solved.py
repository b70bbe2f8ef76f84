"""Exercise 5, solved: a model's answers for a batch, on one device and by nn.DataParallel.

python data_parallel_solved.py
"""

from __future__ import annotations

import argparse
import time

import torch
from fashion_cnn import FashionCNN
from torch import nn


def time_calls(model: nn.Module, batch: torch.Tensor, repeats: int) -> float:
    """Return the mean time of a call in milliseconds, after three that do not count."""
    with torch.inference_mode():
        for _ in range(3):
            model(batch)
        _wait()
        begin = time.perf_counter()
        for _ in range(repeats):
            model(batch)
        _wait()
    return (time.perf_counter() - begin) / repeats * 1000


def _wait() -> None:
    """Wait for the GPU: a call returns before its work is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time inference by batch size")
    parser.add_argument("--batch-sizes", default=[1, 8, 64, 512], type=int, nargs="+")
    parser.add_argument("--repeats", default=30, type=int)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = FashionCNN().to(device).eval()
    parallel = nn.DataParallel(model)
    print(f"{torch.cuda.device_count()} GPUs: DataParallel has devices {parallel.device_ids}")
    print("batch  one device (ms)  DataParallel (ms)  times as fast")
    for size in args.batch_sizes:
        batch = torch.rand(size, 1, 28, 28, device=device)
        alone = time_calls(model, batch, args.repeats)
        together = time_calls(parallel, batch, args.repeats)
        print(f"{size:5}  {alone:15.2f}  {together:17.2f}  {alone / together:13.2f}", flush=True)


if __name__ == "__main__":
    main()
