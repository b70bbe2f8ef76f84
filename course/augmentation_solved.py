"""Exercise 3, solved: three augmentations, and how much workers help with each.

python augmentation_solved.py
"""

from __future__ import annotations

import argparse
import statistics

from lfw_dataset_solved import LFWDataset, time_passes
from torch.utils.data import DataLoader
from torchvision import transforms

AFFINE = transforms.RandomAffine(5, (0.1, 0.1), (0.5, 2.0))
AUGMENTATIONS = {
    "none": [],
    "affine": [AFFINE],
    "heavy": [
        AFFINE,
        transforms.RandomPerspective(0.3, p=0.5),
        transforms.ColorJitter(0.3, 0.3, 0.3, 0.05),
        transforms.GaussianBlur(5),
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time loading by augmentation and workers")
    parser.add_argument("-path_to_folder", default="../lfw")
    parser.add_argument("-batch_size", default=8, type=int)
    parser.add_argument("-num_workers", default=2, type=int)
    parser.add_argument("-batches_to_check", default=50, type=int)
    parser.add_argument("-passes", default=5, type=int)
    args = parser.parse_args()

    header = f"{args.num_workers} workers (s)"
    print(f"augmentation  no workers (s)  {header}  times as fast")
    for name, augmentation in AUGMENTATIONS.items():
        transform = transforms.Compose([*augmentation, transforms.ToTensor()])
        dataset = LFWDataset(args.path_to_folder, transform)
        medians = []  # not disturbed by a single pass in which something else used the CPUs
        for num_workers in (0, args.num_workers):
            loader = DataLoader(dataset, batch_size=args.batch_size, num_workers=num_workers)
            seconds = time_passes(loader, args.batches_to_check, args.passes)
            medians.append(statistics.median(seconds))
        alone, together = medians
        row = f"{alone:14.2f}  {together:{len(header)}.2f}  {alone / together:13.2f}"
        print(f"{name:12}  {row}", flush=True)


if __name__ == "__main__":
    main()
