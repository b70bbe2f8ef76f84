"""The model of fsdp.py: its weights are most of what a rank holds."""

import itertools

from torch import nn


class WideMLP(nn.Sequential):
    """A multilayer perceptron of 4 hidden layers of one width."""

    def __init__(self, image_shape: tuple[int, ...], num_classes: int, *, width: int) -> None:
        num_pixels = image_shape[0] * image_shape[1] * image_shape[2]
        widths = [num_pixels, *[width] * 4]
        hidden = (
            layer
            for before, after in itertools.pairwise(widths)
            for layer in (nn.Linear(before, after), nn.ReLU())
        )
        super().__init__(nn.Flatten(), *hidden, nn.Linear(width, num_classes))
