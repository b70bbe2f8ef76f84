"""Exercise 7, solved: the script as torchrun and hpcdist start it, once per GPU.

hpcdist submit main_solved.py --nodes 2 --gpus 2 --local -- --epochs 5
torchrun --nproc-per-node 2 main_solved.py --epochs 5
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from fashion_cnn import FashionCNN, load_data
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on several nodes")
    # --nodes, --gpus and --nr are the launcher's business; MASTER_ADDR and MASTER_PORT, too.
    parser.add_argument("--epochs", default=2, type=int)
    train(parser.parse_args())


def train(args: argparse.Namespace) -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")  # reads RANK and so on
    rank, gpu = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", gpu) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(0)
    model = DistributedDataParallel(FashionCNN().to(device))
    data, _ = load_data()
    sampler = DistributedSampler(data)  # asks the process group
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1}/{args.epochs}, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
