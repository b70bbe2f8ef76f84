"""The models: a small one of our own, torchvision's classifiers by name, and the user's.

And what is settled before the training: blocks, memory format, threads.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from hpcdist.base.errors import JobError
from hpcdist.base.secrets import Stars
from hpcdist.data.arrays import DataSet
from hpcdist.job.spec import LightningJob, Model, TrainJob
from hpcdist.training.checks import is_own, is_torchvision

Shape = tuple[int, int, int]
"""(channels, height, width) of an image."""

_LARGEST_MAP = 7  # larger feature maps are averaged down to it, so that large images stay cheap
_LEAST_SIDES = {"alexnet": 64, "inception_v3": 80, "maxvit_t": 224}
"""Smallest image that a torchvision model takes, where it is not 32."""

_TORCHVISION_ARGS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}
"""Arguments that the user's replace: one output, and no warning about a default that changes."""


def build_model(model: Model, image_shape: Shape, num_classes: int) -> nn.Module:
    """Return the model that the job names, for images of a shape, with freshly drawn weights."""
    if is_torchvision(model.name):
        make: Any = functools.partial(_build_torchvision, model, image_shape, num_classes)
        takes = "they are given to the model's constructor as keyword arguments"
    else:
        side = model.image_size
        shape = (image_shape[0], side, side) if side else image_shape
        cls: Any = _find_class(model.name) if is_own(model.name) else FashionCNN
        given = {"image_shape": shape, "num_classes": num_classes}
        taken = inspect.signature(cls)
        given = {key: value for key, value in given.items() if key in taken.parameters}
        make = functools.partial(cls, **given | model.args)
        takes = f"the arguments of {model.name} are {taken}"
    try:
        net = make()
    except (TypeError, ValueError) as error:
        if not model.args and not is_own(model.name):
            raise
        raise JobError(
            f"model.args is {Stars().value(model.args)}: {model.name} cannot be made with it: "
            f"{error}",
            hint=takes,
        ) from None
    if not isinstance(net, nn.Module):
        raise JobError(
            f"model.name is {model.name!r}, which gives a {type(net).__name__}, not a "
            "torch.nn.Module",
            hint="name a class derived from torch.nn.Module, or a function that returns one",
        )
    if model.image_size and not is_torchvision(model.name):
        return Scaled(net, side=model.image_size, rgb=False)
    return net


class FashionCNN(nn.Module):
    """Two convolutions and two linear layers, for small images such as FashionMNIST's."""

    def __init__(
        self,
        image_shape: Shape,
        num_classes: int,
        *,
        hidden: int = 128,
        dropout: float = 0.25,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        previous, height, width = image_shape
        for number in (32, 64):
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
            images = images.expand(-1, 3, -1, -1)
        logits: Tensor = self.net(images)
        return logits


def _build_torchvision(model: Model, image_shape: Shape, num_classes: int) -> nn.Module:
    from torchvision import models

    # The position embedding of a transformer is made for one size.
    is_transformer = model.name.startswith("vit_")
    least = (
        model.args.get("image_size", 224) if is_transformer else _LEAST_SIDES.get(model.name, 32)
    )
    side = model.image_size or (int(least) if min(image_shape[1:]) < least else None)
    args = {**_TORCHVISION_ARGS.get(model.name, {}), **model.args}
    given = {"weights": None, "num_classes": num_classes}
    net: nn.Module = models.get_model(model.name, **given, **args)
    return Scaled(net, side=side, rgb=True)


def _find_class(name: str) -> Any:
    """Return what a user's model.name means; JobError where there is no such thing."""
    module, _, class_name = name.partition(":")
    if os.getcwd() not in sys.path[:1]:  # the user's folder comes first
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        found = None
        lacking = f"no module {error.name} is in {os.getcwd()} or among the installed packages"
    else:
        lacking = f"{found.__file__} has no {class_name}"
    if not hasattr(found, class_name):
        hint = "submit from the folder that holds it, or put that on PYTHONPATH"
        raise JobError(f"model.name is {name!r}, but {lacking}", hint=hint)
    return getattr(found, class_name)


def try_model(asked: dict[str, Any]) -> None:
    """Make a model that nothing is computed with; JobError where it does not exist, or cannot be
    made with its arguments. What else it raises is for the ranks: it may need what nodes have."""
    with torch.device("meta"):
        build_model(msgspec.convert(asked["model"], Model), asked["image_shape"], 10)


def seed_all(seed: int, device: torch.device) -> None:
    """Seed python's, numpy's and torch's generators: a user's model may draw from any. By torch's
    own function, which asks for every kind of device, it would take 140 times as long."""
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def count_parameters(module: nn.Module) -> int:
    """Return number of trained parameters."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def pick_memory_format(
    module: nn.Module, *, tensor_cores: bool, device: torch.device
) -> torch.memory_format:
    """Return the memory format of weights and images with which the model is the fastest.

    Measured on CPU with fashion_cnn, batches of 64, against contiguous: a step takes 0.7 of the
    time on 8 x 8 images and 0.8 to 0.9 on 28 x 28 with one thread, 0.8 and 0.85 with two. On GPUs
    the kernels for tensor cores want it; fp32's convolutions use them for TF32, but not on GPUs
    before compute capability 8.0, and neither was measured.
    """
    is_convolutional = any(isinstance(part, nn.Conv2d) for part in module.modules())
    is_faster = is_convolutional and (device.type == "cpu" or tensor_cores)
    return torch.channels_last if is_faster else torch.contiguous_format


def make_model(
    job: TrainJob | LightningJob, data: DataSet, device: torch.device, *, is_sharded: bool = False
) -> tuple[nn.Module, torch.memory_format]:
    """Build the model of a training, with the same weights in all ranks, and return it with the
    memory format of its weights and images."""
    seed_all(job.train.seed, device)
    model = build_model(job.model, data.image_shape, data.num_classes)
    tensor_cores = job.train.precision != "fp32"
    memory_format = pick_memory_format(model, tensor_cores=tensor_cores, device=device)
    if is_sharded:  # FSDP2 cuts up contiguous weights only
        memory_format = torch.contiguous_format
    return model.to(memory_format=memory_format), memory_format


def find_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost blocks, in the order in which the model has them."""
    is_list = type(module) in {nn.Sequential, nn.ModuleList}  # subclasses are parts of their own
    for child in module.children():
        if is_list and type(child) not in {nn.Sequential, nn.ModuleList}:
            yield child
        else:
            yield from find_blocks(child)


FLOP_PER_THREAD = 300e6
"""Work of both passes of a step for which a thread pays.

Measured with FashionCNN on 2 CPUs, 2 threads against 1, by the MFLOP of the forward pass: 1.1 times
as fast at 22, 0.9 at 100, 1.2 at 177, 1.7 at 271. With less work they lose twentyfold as soon as
another program wants a CPU, since each spins until the other has had its turn.
"""


def pick_num_threads(step_flop: float | None, *, available: int) -> int:
    """Return the threads that pay in steps of so much work on the CPU, at most `available`.

    A function of the model and the batch alone, and of no clock: the number of threads decides in
    which order numbers are added up, and so must not differ between a run and its resume.
    """
    if step_flop is None:  # it cannot be counted
        return available
    return max(1, min(available, int(step_flop / FLOP_PER_THREAD)))
