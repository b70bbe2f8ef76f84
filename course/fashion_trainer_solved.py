"""Exercise 12, solved: a small CNN for pictures of clothes, on a CPU or a GPU.

python fashion_trainer_solved.py                                  handwritten digits, bundled
python fashion_trainer_solved.py --data fashion_mnist             FashionMNIST, 30 MB, downloaded
python fashion_trainer_solved.py --data fashion_mnist --device cuda
"""

from __future__ import annotations

import argparse
import time

import torch
from fashion_cnn import FashionCNN, load_data
from torch import nn
from torch.utils.data import DataLoader


def train(model: nn.Module, loader: DataLoader, device: str) -> float:
    """Train for an epoch; return the last loss."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.inference_mode()
def accuracy(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    right = total = 0
    for images, labels in loader:
        right += (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
        total += len(labels)
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small CNN")
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--data", default="digits", choices=["digits", "fashion_mnist"])
    parser.add_argument("--root", default="data", help="folder of FashionMNIST")
    parser.add_argument("--device", default=usual, choices=["cpu", "cuda"])
    parser.add_argument("--epochs", default=3, type=int)
    parser.add_argument("--batch-size", default=64, type=int)
    args = parser.parse_args()

    train_data, test_data = load_data(args.data, args.root)
    train_loader = DataLoader(train_data, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_data, batch_size=512)
    torch.manual_seed(0)
    model = FashionCNN().to(args.device)
    print(f"on {args.device}: {len(train_data):,} images of {args.data}")
    print("epoch  loss   accuracy  images/s")
    for epoch in range(1, args.epochs + 1):
        begin = time.perf_counter()
        loss = train(model, train_loader, args.device)
        rate = len(train_data) / (time.perf_counter() - begin)
        right = accuracy(model, test_loader, args.device)
        print(f"{epoch:5}  {loss:.3f}  {right:8.3f}  {rate:8,.0f}", flush=True)


if __name__ == "__main__":
    main()
