"""A training script as a careful user writes it for torchrun: what `hpcdist submit ddp` must match.

Usage: torchrun --nproc-per-node N plain_ddp.py FOLDER --epochs E --batch-size B --lr LR
           --save-every EPOCHS

No straw man: it has what PyTorch's tutorials and its performance guide recommend, such as the data
set as tensors in memory, normalised once; a DataLoader without workers, which would only slow down
data in memory; gradient_as_bucket_view; a fused optimizer; no .item() in the steps; a sharded
evaluation. Model, data, batch, schedule, threads (OMP_NUM_THREADS, set by the caller), evaluations
and checkpoints are those of jobs/ddp.yaml.

Each rank writes FOLDER/rank-R.json: per epoch the wall time of its training steps, data included,
evaluation and checkpoint not.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def build_model():
    layers = []
    for before, after in ((1, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Dropout(0.25), nn.Linear(64 * 2 * 2, 128), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(0.25), nn.Linear(128, 10))


def load_data():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    train, test = train_test_split(
        torch.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0
    )
    images = (images - images[train].mean()) / images[train].std()
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


@torch.inference_mode()
def evaluate(model, test, rank, world_size):
    model.eval()
    images, labels = (tensor[rank::world_size] for tensor in test.tensors)
    right = (model(images).argmax(dim=1) == labels).sum()
    counts = torch.tensor([right, len(labels)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def save(path, model, optimizer, schedule, epoch):
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save(state | {"epoch": epoch}, path.with_suffix(".aside"))
    os.replace(path.with_suffix(".aside"), path)


def main():
    options = parse_options()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train, test = load_data()
    sampler = DistributedSampler(train, seed=0)
    batches = DataLoader(train, sampler=sampler, batch_size=options.batch_size)
    bare = build_model()
    model = DistributedDataParallel(bare, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(batches))
    epoch_times_s = []
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        begin_s = time.perf_counter()
        model.train()
        loss_sum = torch.zeros(())
        for images, labels in batches:
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            loss_sum += loss.detach()
        loss = loss_sum.item() / len(batches)
        epoch_times_s.append(time.perf_counter() - begin_s)
        accuracy = evaluate(bare, test, rank, world_size)
        if rank == 0:
            print(f"epoch {epoch + 1}  loss {loss:.4f}  accuracy {accuracy:.4f}")
        if rank == 0 and (epoch + 1) % options.save_every == 0:
            save(options.folder / "checkpoint.pt", bare, optimizer, schedule, epoch)
    result = {"train_samples": len(train), "epoch_times_s": epoch_times_s}
    (options.folder / f"rank-{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for name, kind in (("epochs", int), ("batch-size", int), ("lr", float), ("save-every", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
