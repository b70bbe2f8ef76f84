"""Exercise 1, solved: photographs of people as a Dataset, read from their files when asked for.

python lfw_dataset_solved.py                                     what a sample and a batch are
python lfw_dataset_solved.py -visualize_batch                    a batch as a picture: batch.png
python lfw_dataset_solved.py -get_timing -num_workers 1          seconds for 100 batches, 5 times
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.utils import make_grid, save_image

TRANSFORM = transforms.Compose(
    [transforms.RandomAffine(5, (0.1, 0.1), (0.5, 2.0)), transforms.ToTensor()]
)


class LFWDataset(Dataset):
    """The photographs below a folder, in the layout of LFW: one folder per person."""

    def __init__(self, path_to_folder: str, transform: transforms.Compose) -> None:
        self.paths = sorted(Path(path_to_folder).glob("*/*.jpg"))
        self.transform = transform
        if not self.paths:
            raise SystemExit(
                f"{path_to_folder}: no photographs. Make some: hpcdist data faces --make ../lfw; "
                "or name the folder with the people of LFW: -path_to_folder DIR"
            )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB"))


def time_passes(loader: DataLoader, batches: int, passes: int = 5) -> list[float]:
    """Return how long each pass over so many batches takes, in seconds."""
    seconds = []
    for _ in range(passes):
        begin = time.perf_counter()
        for _batch in itertools.islice(loader, batches):
            pass
        seconds.append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Load photographs")
    parser.add_argument("-path_to_folder", default="../lfw")
    parser.add_argument("-batch_size", default=8, type=int)
    parser.add_argument("-num_workers", default=0, type=int)
    parser.add_argument("-visualize_batch", action="store_true")
    parser.add_argument("-get_timing", action="store_true")
    parser.add_argument("-batches_to_check", default=100, type=int)
    args = parser.parse_args()

    dataset = LFWDataset(args.path_to_folder, TRANSFORM)
    loader = DataLoader(dataset, batch_size=args.batch_size, num_workers=args.num_workers)

    if args.visualize_batch:
        save_image(make_grid(next(iter(loader)), nrow=8), "batch.png")
        print("a batch is drawn in batch.png")
    elif args.get_timing:
        seconds = time_passes(loader, args.batches_to_check)
        mean, sd = statistics.mean(seconds), statistics.stdev(seconds)
        print(
            f"{args.num_workers} workers, {args.batches_to_check} batches: {mean:.2f} ± {sd:.2f} s"
        )
    else:
        with Image.open(dataset.paths[0]) as image:
            print(f"file:   {type(image).__name__}, {image.mode}, {image.size}")
        sample, batch = dataset[0], next(iter(loader))
        print(f"sample: {type(sample).__name__}, {sample.dtype}, {tuple(sample.shape)}")
        print(f"batch:  {type(batch).__name__}, {batch.dtype}, {tuple(batch.shape)}")
        print(f"{len(dataset):,} photographs")


if __name__ == "__main__":
    main()
