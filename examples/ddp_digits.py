"""Handwritten digits with DistributedDataParallel; goes on where it was stopped.

torchrun --nproc-per-node 2 examples/ddp_digits.py
hpcdist submit examples/ddp_digits.py --gpus 2 --local
"""

import itertools
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hpcdist import record

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
BATCH_SIZE = 16
FOLDER = Path(os.environ.get("HPCDIST_RUN_DIR", "."))  # the same in every attempt of a run
CHECKPOINT = FOLDER / "checkpoint.pt"


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group()
    torch.manual_seed(0)

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler, drop_last=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    step = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        print(f"rank {dist.get_rank()} goes on after step {step}", flush=True)

    def save() -> None:
        if dist.get_rank() == 0:
            aside = CHECKPOINT.with_suffix(".new")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"step": step}, aside)
            os.replace(aside, CHECKPOINT)  # never half a checkpoint
        dist.barrier()

    ddp = DistributedDataParallel(model)
    record.start(first_step=step, model=ddp)
    for epoch in range(step // len(loader), EPOCHS):
        sampler.set_epoch(epoch)
        rest = itertools.islice(loader, step % len(loader), None)
        for batch, labels in record.batches(rest):
            loss = nn.functional.cross_entropy(ddp(batch.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            record.step(samples=len(labels), loss=loss)
            if record.should_stop():
                save()
                sys.exit(record.EXIT_STOPPED)
        save()

    with torch.inference_mode():
        predicted = model(images.to(device)).argmax(1).cpu()
    accuracy = float((predicted == data.tensors[1]).float().mean())
    record.evaluate(accuracy=accuracy, samples=len(data))
    if dist.get_rank() == 0:
        print(f"accuracy {accuracy:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
