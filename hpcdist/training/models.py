"""The models: two small ones of our own, torchvision's classifiers by name, and the user's.

And what is done before the training: blocks, recomputing, compiling, memory format, threads.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import pairwise
from typing import Any, cast

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from hpcdist.base.errors import HpcdistError, JobError
from hpcdist.base.secrets import Stars
from hpcdist.base.text import nearest_first
from hpcdist.job.spec import Model
from hpcdist.training.checks import is_own, is_torchvision, require_compiler

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
    if is_torchvision(model.name):
        make: Any = functools.partial(_build_torchvision, model, image_shape, num_classes)
        takes = "they are given to the model's constructor as keyword arguments"
    else:
        side = model.image_size
        shape = (image_shape[0], side, side) if side else image_shape
        cls = _find_class(model.name) if is_own(model.name) else _BUILT_IN[model.name]
        given = {"image_shape": shape, "num_classes": num_classes}
        taken = inspect.signature(cls)
        given = {key: value for key, value in given.items() if key in taken.parameters}
        if not is_own(model.name) and (wrong := sorted(given.keys() & model.args.keys())):
            raise JobError(
                f"model.args has {wrong[0]}, which the data say for {model.name}",
                hint="leave it out",
            )
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


_BUILT_IN = {"fashion_cnn": FashionCNN, "mlp": MLP}


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


def _find_class(name: str) -> Any:
    """Return what a user's model.name means; JobError where there is no such thing."""
    module, _, class_name = name.partition(":")
    if os.getcwd() not in sys.path[:1]:  # the user's folder comes first
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise JobError(
            f"model.name is {name!r}, but there is no module {error.name} in {os.getcwd()} or "
            "among the installed packages",
            hint="submit from the folder that holds it, or put that on PYTHONPATH",
        ) from None
    if hasattr(found, class_name):
        return getattr(found, class_name)
    nearest = nearest_first(class_name, sorted(each for each in vars(found) if each[:1] != "_"))
    raise JobError(
        f"model.name is {name!r}, but {found.__file__} has no {class_name}",
        hint="it has: " + ", ".join(nearest[:8]) if nearest else "define it there",
    )


def try_model(asked: dict[str, Any]) -> None:
    """Make a model that nothing is computed with; JobError where it does not exist, or cannot be
    made with its arguments. What else it raises is for the ranks: it may need what nodes have."""
    with torch.device("meta"):
        build_model(msgspec.convert(asked["model"], Model), asked["image_shape"], 10)


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


def find_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost blocks, in the order in which the model has them."""
    is_list = type(module) in {nn.Sequential, nn.ModuleList}  # subclasses are parts of their own
    for child in module.children():
        if is_list and type(child) not in {nn.Sequential, nn.ModuleList}:
            yield child
        else:
            yield from find_blocks(child)


def recompute_blocks(model: nn.Module) -> None:
    """Have each block of several layers keep only its input for the backward pass. HpcdistError
    where the model has none: to recompute a single layer would save nothing."""
    blocks = [block for block in find_blocks(model) if any(True for _ in block.children())]
    if not blocks:
        raise HpcdistError(
            "train.activation_checkpointing is true, but the model has no blocks: modules of "
            "several layers, as items of a Sequential or ModuleList",
            hint="leave it out, or take a smaller train.batch_size with train.accumulate",
        )
    for block in blocks:
        # An attribute of the instance hides the method; names of parameters stay as they are.
        block.forward = functools.partial(
            checkpoint,
            block.forward,
            use_reentrant=False,
            # Around the forward pass, and around the one that is done again.
            context_fn=lambda block=block: (nullcontext(), _without_running_means(block)),
        )


@contextmanager
def _without_running_means(block: nn.Module) -> Iterator[None]:
    """Batch norm must not count the same batch twice into its running means.

    It must be given them all the same: what is saved for the backward pass has to be alike.
    """
    with ExitStack() as stack:
        for part in block.modules():
            if isinstance(part, _BatchNorm) and part.track_running_stats:
                stack.callback(setattr, part, "momentum", part.momentum)
                stack.callback(setattr, part, "num_batches_tracked", part.num_batches_tracked)
                part.momentum, part.num_batches_tracked = 0.0, None
        yield


def compile_module(module: nn.Module, device: torch.device, *, setting: str | bool) -> nn.Module:
    """Return the module compiled as train.compile says; JobError where there is no compiler."""
    if not setting:
        return module
    require_compiler(device.type)
    mode = setting if isinstance(setting, str) else None
    return cast("nn.Module", torch.compile(module, mode=mode))


FLOP_PER_THREAD = 100e6
"""Work of one forward pass for which a thread pays.

Measured with FashionCNN on 2 CPUs, 2 threads against 1: 1.1 times as fast at 22 MFLOP, 0.9 at 100,
1.2 at 177, 1.7 at 271. With less work they lose twentyfold as soon as another program wants a CPU,
since each spins until the other has had its turn.
"""


def pick_num_threads(model: nn.Module, images: Tensor, *, batch_size: int, available: int) -> int:
    """Return the threads that pay in steps of `batch_size` images on the CPU, at most `available`.

    A function of the model and the batch alone, and of no clock: the number of threads decides in
    which order numbers are added up, and so must not differ between a run and its resume.
    """
    if available == 1:
        return 1
    from torch.utils.flop_counter import FlopCounterMode

    was_training = model.training
    model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(images)
    model.train(was_training)
    flop = counter.get_total_flops() / len(images) * batch_size
    return max(1, min(available, int(flop / FLOP_PER_THREAD)))
