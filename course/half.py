"""Exercise 10: a training in fp32, and in half precision.

python half.py

It runs as it is, in fp32 under three names. There are two TODOs.
"""

from __future__ import annotations

import argparse
import time

import torch
from fashion_cnn import FashionCNN, load_data
from torch import nn
from torch.utils.data import DataLoader

PRECISIONS = {"fp32": None, "bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


def show_range() -> None:
    print("type      smallest  largest  1 + 1/256  1e-8")
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        info = torch.finfo(kind)
        name = str(kind).removeprefix("torch.")
        near, tiny = torch.tensor([1 + 1 / 256, 1e-8], dtype=kind).tolist()
        print(f"{name:8}  {info.tiny:8.1g}  {info.max:7.1g}  {near:9.6f}  {tiny:4.0g}")


def train(precision: str, device: str, epochs: int) -> tuple[float, float, float]:
    """Return milliseconds per step, the last loss, and MB that the step keeps for the backward."""
    torch.manual_seed(0)
    model = FashionCNN().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    kind = PRECISIONS[precision]
    # TODO 2: float16 needs torch.amp.GradScaler(device); where is it used below?
    data, _ = load_data()
    loader = DataLoader(data, batch_size=32, shuffle=True)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    steps, begin = 0, time.perf_counter()
    for _ in range(epochs):
        for images, labels in loader:
            if steps == 1:  # the first is slower
                begin = time.perf_counter()
            kept.clear()
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                # TODO 1: with torch.autocast(device, dtype=kind, enabled=kind is not None):
                outputs = model(images.to(device))
                loss = nn.functional.cross_entropy(outputs.float(), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
    loss_value = loss.item()  # waits for a GPU, too
    return (time.perf_counter() - begin) / (steps - 1) * 1000, loss_value, sum(kept.values()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Train in several precisions")
    parser.add_argument("--precisions", default=[*PRECISIONS], nargs="+", choices=[*PRECISIONS])
    parser.add_argument("--epochs", default=1, type=int)
    args = parser.parse_args()
    show_range()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"on {device}")
    print("precision   step (ms)  last loss  kept (MB)")
    for precision in args.precisions:
        step_ms, loss, kept_mb = train(precision, device, args.epochs)
        print(f"{precision:10}  {step_ms:9.1f}  {loss:9.3f}  {kept_mb:9.1f}", flush=True)


if __name__ == "__main__":
    main()
