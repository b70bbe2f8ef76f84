"""The model of fsdp.py: its weights are most of what a rank holds."""

from torch import nn


class WideMLP(nn.Sequential):
    """A multilayer perceptron of 4 hidden layers of one width."""

    def __init__(self, image_shape: tuple[int, ...], num_classes: int, *, width: int) -> None:
        layers = [nn.Flatten(), nn.Linear(image_shape[0] * image_shape[1] * image_shape[2], width)]
        for _ in range(3):
            layers += [nn.ReLU(), nn.Linear(width, width)]
        super().__init__(*layers, nn.ReLU(), nn.Linear(width, num_classes))
