"""A training script as a careful user writes it for torchrun: what `hpcdist submit ddp` must match.

Usage: torchrun --nproc-per-node N plain_ddp.py FOLDER --epochs E --batch-size B --lr LR
           --save-every EPOCHS [--lean]

No straw man. It has what PyTorch's tutorials and its performance guide recommend, and what a
reviewer would ask for: the data set as tensors in memory, normalised once; DistributedSampler with
set_epoch; a DataLoader in the process itself, since workers would only slow down data that are in
memory already; DistributedDataParallel with gradient_as_bucket_view; a fused optimizer; gradients
set to None; no .item() in the steps; a sharded evaluation with one all-reduce after each epoch;
checkpoints by rank 0, written aside and renamed. The model, the split's sizes, batch, schedule,
threads (OMP_NUM_THREADS, set by the caller) and the places of evaluations and checkpoints are those
of jobs/ddp.yaml.

--lean cuts the batches out of whole tensors instead of a DataLoader, which hardly any script does:
it shows how far the loop is from the least that PyTorch itself needs.

Each rank writes FOLDER/rank-R.json: per epoch the wall time of its training steps, data included,
evaluation and checkpoint not; and the last accuracy.
"""

import argparse
import json
import math
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
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64 * 2 * 2, 128),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(128, 10),
    )


def load_data():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    train, test = train_test_split(
        torch.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0
    )
    images = (images - images[train].mean()) / images[train].std()
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


class WholeBatches:
    """Batches cut out of the data set's tensors by the sampler's indices (--lean)."""

    def __init__(self, data, sampler, batch_size):
        self.data, self.sampler, self.batch_size = data, sampler, batch_size

    def __len__(self):
        return math.ceil(len(self.sampler) / self.batch_size)

    def __iter__(self):
        for indices in torch.tensor(list(self.sampler)).split(self.batch_size):
            yield tuple(tensor.index_select(0, indices) for tensor in self.data.tensors)


def train_epoch(model, batches, optimizer, schedule):
    model.train()
    loss_sum = torch.zeros(())
    for images, labels in batches:
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        loss_sum += loss.detach()
    return loss_sum.item() / len(batches)


@torch.inference_mode()
def evaluate(model, test, rank, world_size):
    model.eval()
    images, labels = (tensor[rank::world_size] for tensor in test.tensors)
    right = (model(images).argmax(dim=1) == labels).sum()
    counts = torch.tensor([right, len(labels)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def save(path, model, optimizer, schedule, epoch):
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "epoch": epoch,
    }
    torch.save(state, path.with_suffix(".aside"))
    os.replace(path.with_suffix(".aside"), path)


def main():
    options = parse_options()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train, test = load_data()
    sampler = DistributedSampler(train, seed=0)
    make_batches = WholeBatches if options.lean else DataLoader
    batches = make_batches(train, sampler=sampler, batch_size=options.batch_size)
    bare = build_model()
    model = DistributedDataParallel(bare, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(batches))
    epoch_times_s = []
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        begin_s = time.perf_counter()
        loss = train_epoch(model, batches, optimizer, schedule)
        epoch_times_s.append(time.perf_counter() - begin_s)
        accuracy = evaluate(bare, test, rank, world_size)
        if rank == 0:
            print(f"epoch {epoch + 1}  loss {loss:.4f}  accuracy {accuracy:.4f}")
        if rank == 0 and (epoch + 1) % options.save_every == 0:
            save(options.folder / "checkpoint.pt", bare, optimizer, schedule, epoch)
    result = {
        "train_samples": len(train),
        "epoch_times_s": epoch_times_s,
        "accuracy": accuracy,
    }
    (options.folder / f"rank-{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--lean", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
