"""Handwritten digits with Hugging Face accelerate; goes on where it was stopped.

torchrun --nproc-per-node 2 examples/accelerate_digits.py
hpcdist submit examples/accelerate_digits.py --gpus 2 --local
"""

import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hpcdist import record

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
BATCH_SIZE = 16
FOLDER = Path(os.environ.get("HPCDIST_RUN_DIR", "."))  # the same in every attempt of a run
CHECKPOINT = FOLDER / "checkpoint"


class Steps:
    """How far the training is; accelerate saves it with the rest."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def main() -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    data = TensorDataset(images, labels)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        DataLoader(data, batch_size=BATCH_SIZE, shuffle=True, drop_last=True),
    )
    steps = Steps()
    accelerator.register_for_checkpointing(steps)
    if CHECKPOINT.exists():
        accelerator.load_state(str(CHECKPOINT))
        print(f"rank {accelerator.process_index} goes on after step {steps.done}", flush=True)

    record.start(first_step=steps.done, model=model)
    for epoch in range(steps.done // len(loader), EPOCHS):
        loader.set_epoch(epoch)
        rest = accelerator.skip_first_batches(loader, steps.done % len(loader))
        for batch, targets in record.batches(rest):
            loss = nn.functional.cross_entropy(model(batch), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            steps.done += 1
            record.step(samples=len(targets), loss=loss)
            if record.should_stop():
                accelerator.save_state(str(CHECKPOINT))
                accelerator.wait_for_everyone()
                sys.exit(record.EXIT_STOPPED)

    with torch.inference_mode():
        plain = accelerator.unwrap_model(model)
        predicted = plain(images.to(accelerator.device)).argmax(1).cpu()
    accuracy = float((predicted == labels).float().mean())
    record.evaluate(accuracy=accuracy, samples=len(data))
    accelerator.print(f"accuracy {accuracy:.3f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
