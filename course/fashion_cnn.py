"""The model of exercises 5, 7 to 10, 12 and 14, and its data: clothes, or digits by default.

`load_data()` returns handwritten digits that come with scikit-learn, enlarged to 28 x 28 pixels.
`load_data("fashion_mnist", "data")` returns FashionMNIST from the folder data, and downloads it
where it is not there and the machine has internet.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset


class FashionCNN(nn.Module):
    """Two convolutions and two layers: 28 x 28 grey pixels in, 10 numbers out."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *self._block(1, width),
            *self._block(width, 2 * width),
        )
        self.classes = nn.Sequential(
            nn.Flatten(),
            nn.Linear(2 * width * 7 * 7, 128),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Linear(128, 10),
        )

    @staticmethod
    def _block(inside: int, outside: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inside, outside, kernel_size=3, padding=1)
        return [convolution, nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classes(self.features(images))


def load_data(name: str = "digits", root: str = "data") -> tuple[Dataset, Dataset]:
    """Return the images to train with and those to test with, each with its class."""
    if name == "digits":
        return _digits()
    from torchvision.datasets import FashionMNIST
    from torchvision.transforms import ToTensor

    return tuple(
        FashionMNIST(root, train=train, download=True, transform=ToTensor())
        for train in (True, False)
    )


def _digits() -> tuple[Dataset, Dataset]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    images = nn.functional.interpolate(small, size=28, mode="bilinear")
    labels = torch.tensor(digits.target)
    return TensorDataset(images[360:], labels[360:]), TensorDataset(images[:360], labels[:360])
