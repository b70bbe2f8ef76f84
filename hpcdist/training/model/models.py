"""The models: two small ones of our own, torchvision's classifiers by name, and the user's."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from hpcdist.base.errors import JobError
from hpcdist.base.secrets import Stars
from hpcdist.job.spec import Model
from hpcdist.training.model.checks import BUILT_IN_CLASSES, GIVEN, is_own, is_torchvision

Shape = tuple[int, int, int]
"""(channels, height, width) of an image."""

_LARGEST_MAP = 7  # larger feature maps are averaged down to it, so that large images stay cheap
_RGB = 3
_LEAST_SIDES = {"alexnet": 64, "inception_v3": 80, "maxvit_t": 224}
"""Smallest image that a torchvision model takes, where it is not 32."""

_TORCHVISION_ARGS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}
"""Arguments that the user's replace: one output, and no warning about a default that changes."""


def build_model(model: Model, image_shape: Shape, num_classes: int) -> nn.Module:
    """Return the model that the job names, for images of a shape, with freshly drawn weights."""
    side = model.image_size
    shape = (image_shape[0], side, side) if side else image_shape
    try:
        if is_torchvision(model.name):
            return _build_torchvision(model, image_shape, num_classes)
        if is_own(model.name):
            net = _build_users(model, shape, num_classes)
        else:
            net = _OWN_CLASSES[BUILT_IN_CLASSES[model.name]](shape, num_classes, **model.args)
        return Scaled(net, side=side, rgb=False) if side else net
    except (TypeError, ValueError) as error:
        if not model.args:
            raise
        raise JobError(
            f"model.args is {Stars().value(model.args)}: {model.name} cannot be made with it: "
            f"{error}",
            hint="they are given to the model's constructor as keyword arguments",
        ) from None


class FashionCNN(nn.Module):
    """Two convolutions and two linear layers, for small images such as FashionMNIST's."""

    def __init__(
        self,
        image_shape: Shape,
        num_classes: int,
        *,
        channels: Sequence[int] = (32, 64),
        hidden: int = 128,
        dropout: float = 0.25,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        previous, height, width = image_shape
        for number in channels:
            layers += [nn.Conv2d(previous, number, 3, padding=1), nn.ReLU()]
            layers += [nn.MaxPool2d(2, ceil_mode=True)]  # ceil: an image of one pixel stays one
            previous, height, width = number, -(-height // 2), -(-width // 2)
        if max(height, width) > _LARGEST_MAP:
            height, width = min(height, _LARGEST_MAP), min(width, _LARGEST_MAP)
            layers += [nn.AdaptiveAvgPool2d((height, width))]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(previous * height * width, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits [samples, classes] of images [samples, channels, height, width]."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


class MLP(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(
        self,
        image_shape: Shape,
        num_classes: int,
        *,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        widths = [channels * height * width, *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


class Scaled(nn.Module):
    """A model behind a change of the images' size and, for gray ones, a repetition of the channel.

    The data stay small in memory and on their way to the device; they are blown up where they are
    used.
    """

    def __init__(self, net: nn.Module, *, side: int | None, rgb: bool) -> None:
        """Put `net` behind a scaling to `side` pixels square (None: none)."""
        super().__init__()
        self.net = net
        self._size = (side, side) if side else None
        self._rgb = rgb

    def forward(self, images: Tensor) -> Tensor:
        if self._size and images.shape[2:] != self._size:
            images = F.interpolate(images, self._size, mode="bilinear", antialias=False)
        if self._rgb and images.shape[1] == 1:
            images = images.expand(-1, _RGB, -1, -1)
        logits: Tensor = self.net(images)
        return logits


_OWN_CLASSES = {cls.__name__: cls for cls in (FashionCNN, MLP)}


def _build_torchvision(model: Model, image_shape: Shape, num_classes: int) -> nn.Module:
    from torchvision import models

    # The position embedding of a transformer is made for one size.
    is_transformer = model.name.startswith("vit_")
    least = (
        model.args.get("image_size", 224) if is_transformer else _LEAST_SIDES.get(model.name, 32)
    )
    side = model.image_size or (int(least) if min(image_shape[1:]) < least else None)
    args = {**_TORCHVISION_ARGS.get(model.name, {}), "num_classes": num_classes, **model.args}
    net: nn.Module = models.get_model(model.name, weights=None, **args)
    return Scaled(net, side=side, rgb=True)


def _build_users(model: Model, image_shape: Shape, num_classes: int) -> nn.Module:
    """Return an object of the class, given `image_shape` and `num_classes` where it takes them."""
    module, _, class_name = model.name.partition(":")
    if os.getcwd() not in sys.path[:1]:  # the user's folder, where the check looked first
        sys.path.insert(0, os.getcwd())
    cls = getattr(importlib.import_module(module), class_name)
    given = dict(zip(GIVEN, (image_shape, num_classes), strict=True))
    taken = inspect.signature(cls).parameters
    built = cls(**{key: value for key, value in given.items() if key in taken} | model.args)
    if not isinstance(built, nn.Module):
        raise JobError(
            f"model.name is {model.name!r}, which gives a {type(built).__name__}, not a "
            "torch.nn.Module",
            hint="name a class derived from torch.nn.Module, or a function that returns one",
        )
    return built


def count_parameters(module: nn.Module) -> int:
    """Return number of trained parameters."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def pick_memory_format(
    module: nn.Module,
    *,
    setting: str | bool,
    tensor_cores: bool,
    device: torch.device,
    sharded: bool = False,
) -> torch.memory_format:
    """Return the memory format of weights and images that train.channels_last asks for.

    `sharded`: the weights are to be cut up, which FSDP2 can do with contiguous ones only.
    """
    if setting == "auto":
        # Measured on CPU with fashion_cnn, batches of 64, against contiguous: a step takes 0.7 of
        # the time on 8 x 8 images and 0.8 to 0.9 on 28 x 28 with one thread, 0.8 and 0.85 with
        # two. On GPUs the kernels for tensor cores want it; fp32's convolutions use them for TF32,
        # but not on GPUs before compute capability 8.0, and neither was measured.
        is_convolutional = any(isinstance(part, nn.Conv2d) for part in module.modules())
        setting = not sharded and is_convolutional and (device.type == "cpu" or tensor_cores)
    return torch.channels_last if setting else torch.contiguous_format
