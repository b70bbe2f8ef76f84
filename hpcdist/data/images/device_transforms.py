"""Transforms of whole batches where the model is, by kornia.

A list of torchvision's transforms is cut in two: what draws nothing and comes first is done to each
image by the CPUs, the rest to batches on the device, with parameters of its own for each image. The
choice between the two ways needs neither torch nor kornia: it is known where a job is submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import JobError
from hpcdist.data.images.transforms import (
    Spec,
    Step,
    is_unchanged,
    kept_random_state,
    steps_of,
)
from hpcdist.job.spec import Data

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, int, int]
"""(channels, height, width)"""

_WITHOUT_KORNIA = "kornia, which transforms whole batches, is not installed"
_INSTALL = "install it with: pip install kornia (or hpcdist[kornia])"
_DRAW_NOTHING = frozenset({"CenterCrop", "Grayscale", "Identity", "Pad", "RGB", "Resize"})
_CROPS = frozenset({"RandomCrop", "RandomResizedCrop"})
_PAIR = 2
_COLOURS = 3
_WHITE = 255
_AT_A_TIME = 32
"""Images: enough for a GPU, with most of its memory left to the model."""


@dataclass(frozen=True, kw_only=True)
class Division:
    """A list of transforms, cut in two."""

    before: Spec
    """Done to each image before the hand-over."""
    rest: tuple[Step, ...] = ()
    """Done to whole batches: from the first transform on that draws random numbers."""


def divide(spec: Spec) -> Division:
    """Cut a list at its first transform that draws random numbers."""
    steps = steps_of(spec)
    num_before = next(
        (at for at, step in enumerate(steps) if step.name not in _DRAW_NOTHING), len(steps)
    )
    before = [{step.name: dict(step.arguments)} for step in steps[:num_before]]
    return Division(before=before, rest=tuple(steps[num_before:]))


def is_on_device(data: Data, device: str) -> bool:
    """Return whether whole batches are transformed on `device`; `data` has been checked."""
    if data.device_transform is False or not divide(data.transform).rest:
        return False
    return data.device_transform is True or (
        _auto_prefers_device(data, device) and _why_not_by_auto(data) is None
    )


def transform_on(data: Data, device: str) -> str | None:
    """Return where training images are transformed: device or cpu; None: they are not."""
    if is_unchanged(data.transform):
        return None
    return "device" if is_on_device(data, device) else "cpu"


def device_note(data: Data, device: str) -> str | None:
    """Return a note for the user on where images are transformed; None: by the CPUs, as usual."""
    if is_on_device(data, device):
        crop = _crop_of_any_size(data)
        scaled = f"; images are scaled to the size of the first before {crop}" if crop else ""
        setting = str(data.device_transform).lower()
        return (
            f"data.device_transform is {setting}: images are transformed on {device}, a batch at a "
            f"time, by kornia; their pixels differ from those that the CPUs make{scaled}"
        )
    reason = _why_not_by_auto(data)
    if reason is None or not _auto_prefers_device(data, device) or is_unchanged(data.transform):
        return None
    return f"data.device_transform is auto: images are transformed by the CPUs, because {reason}"


def check_device_transform(data: Data) -> None:
    """Raise JobError where data.device_transform is true and whole batches cannot be changed."""
    if data.device_transform is not True or is_unchanged(data.transform):
        return
    reason = why_not(data)
    if reason is None:
        return
    hint = "set data.device_transform to false, or leave it out"
    if reason == _WITHOUT_KORNIA:
        hint = f"{_INSTALL}; or leave data.device_transform out"
    elif data.handover == "uint8":
        hint += "; whole batches can have: " + ", ".join(_OF_KORNIA)
    raise JobError(f"data.device_transform is true, but {reason}", hint=hint)


def why_not(data: Data) -> str | None:
    """Return the reason why images cannot be transformed a batch at a time; None: they can."""
    if data.handover != "uint8":
        return f"data.handover is {data.handover}, and whole batches are transformed from uint8"
    for step in divide(data.transform).rest:
        reason = _why_not_step(step)
        if reason is not None:
            return f"data.transform has {reason}, which whole batches cannot have"
    return None if find_spec("kornia") else _WITHOUT_KORNIA


def _why_not_by_auto(data: Data) -> str | None:
    crop = _crop_of_any_size(data)
    if crop is None:
        return why_not(data)
    return why_not(data) or f"data.size is not set, and {crop} takes images of any size"


def _crop_of_any_size(data: Data) -> str | None:
    """A crop that the CPUs would make of each image as it is; in a batch all have one size."""
    division = divide(data.transform)
    if data.size or any(map(_gives_one_size, steps_of(division.before))):
        return None
    return next((step.name for step in division.rest if step.name in _CROPS), None)


def _gives_one_size(step: Step) -> bool:
    size = step.arguments.get("size")
    is_pair = isinstance(size, Sequence) and len(size) == _PAIR
    return step.name == "CenterCrop" or (step.name == "Resize" and is_pair)


def _auto_prefers_device(data: Data, device: str) -> bool:
    """Only a job that does without exact pixels has them made by a GPU without asking for it."""
    is_fast = data.device_transform == "auto" and data.decoder == "fast"
    return is_fast and device.startswith("cuda")


def _why_not_step(step: Step) -> str | None:
    if step.name not in _OF_KORNIA:
        after = " after one that draws random numbers" if step.name in _DRAW_NOTHING else ""
        return step.name + after
    arguments = _OF_KORNIA[step.name].arguments
    for name, value in step.arguments.items():
        try:
            arguments[name](value)
        except (KeyError, TypeError, ValueError):
            return f"{step.name} with {name}={str(value).lower()}"
    return None


# From torchvision's arguments to kornia's.


def _same(value: Any) -> Any:
    return tuple(value) if isinstance(value, Sequence) else value


def _size(value: Any) -> tuple[int, int]:
    """(height, width); a number means a square."""
    height, width = value if isinstance(value, Sequence) else (value, value)
    return int(height), int(width)


def _kernel(value: Any) -> tuple[int, int]:
    """(height, width) of what torchvision has as (width, height)."""
    width, height = _size(value)
    return height, width


def _range(value: Any) -> tuple[float, float]:
    low, high = value if isinstance(value, Sequence) else (value, value)
    return float(low), float(high)


def _resampling(value: Any) -> str:
    return {0: "NEAREST", "nearest": "NEAREST", 2: "BILINEAR", "bilinear": "BILINEAR"}[value]


def _bilinear(value: Any) -> str:
    if _resampling(value) != "BILINEAR":
        raise ValueError(value)
    return "BILINEAR"


def _level(value: Any) -> float:
    """Return a level of 0 to 255, the same for all channels."""
    if not 0 <= float(value) <= _WHITE:
        raise ValueError(value)
    return float(value) / _WHITE


def _constant(value: Any) -> str:
    if value != "constant":
        raise ValueError(value)
    return "constant"


@dataclass(frozen=True, kw_only=True)
class _Augmentation:
    """One of kornia's augmentations, and what it takes of torchvision's arguments."""

    name: str
    arguments: Mapping[str, Callable[[Any], Any]]
    """Name in torchvision -> its value for kornia, or TypeError, KeyError, ValueError."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """In kornia's names, where torchvision's defaults differ."""

    def make(self, arguments: Mapping[str, Any]) -> Any:
        """Return the augmentation, for the arguments of torchvision's transform."""
        from kornia import augmentation

        translated = {
            _RENAMED.get(name, name): self.arguments[name](value)
            for name, value in arguments.items()
        }
        return getattr(augmentation, self.name)(**{**self.defaults, **translated})


_RENAMED = {"interpolation": "resample"}
_ALWAYS = {"p": 1.0}
_CHANCE = {"p": float}

_OF_KORNIA = {
    "ColorJitter": _Augmentation(
        name="ColorJitter",
        arguments=dict.fromkeys(("brightness", "contrast", "saturation", "hue"), _same),
    ),
    "GaussianBlur": _Augmentation(
        name="RandomGaussianBlur",
        arguments={"kernel_size": _kernel, "sigma": _range},
        defaults={"sigma": (0.1, 2.0), **_ALWAYS},
    ),
    "RandomAffine": _Augmentation(
        name="RandomAffine",
        arguments={
            **dict.fromkeys(("degrees", "translate", "scale", "shear"), _same),
            "interpolation": _resampling,
        },
        defaults={"resample": "NEAREST", **_ALWAYS},
    ),
    "RandomCrop": _Augmentation(
        name="RandomCrop",
        arguments={
            "size": _size,
            "padding": _same,
            "pad_if_needed": bool,
            "fill": _level,
            "padding_mode": _constant,
        },
    ),
    "RandomErasing": _Augmentation(
        name="RandomErasing",
        arguments={**_CHANCE, "scale": _range, "ratio": _range, "value": _level},
    ),
    "RandomGrayscale": _Augmentation(name="RandomGrayscale", arguments=_CHANCE),
    "RandomHorizontalFlip": _Augmentation(name="RandomHorizontalFlip", arguments=_CHANCE),
    "RandomInvert": _Augmentation(name="RandomInvert", arguments=_CHANCE),
    "RandomPerspective": _Augmentation(
        name="RandomPerspective",
        arguments={**_CHANCE, "distortion_scale": float, "interpolation": _resampling},
    ),
    "RandomResizedCrop": _Augmentation(
        name="RandomResizedCrop",
        arguments={"size": _size, "scale": _range, "ratio": _range, "interpolation": _bilinear},
    ),
    "RandomRotation": _Augmentation(
        name="RandomRotation",
        arguments={"degrees": _same, "interpolation": _resampling},
        defaults={"resample": "NEAREST", **_ALWAYS},
    ),
    "RandomVerticalFlip": _Augmentation(name="RandomVerticalFlip", arguments=_CHANCE),
}
"""torchvision's transform -> what does the same to whole batches."""


class BatchTransform:
    """The transforms of whole batches, each image with parameters of its own."""

    def __init__(self, steps: Sequence[Step], shape: Shape) -> None:
        """`shape` is that of the images before; JobError where they do not fit the transforms."""
        if not find_spec("kornia"):
            raise JobError(_WITHOUT_KORNIA, hint=_INSTALL)
        try:
            self.shape = self._make(steps, shape)
            """Shape of the images that are made."""
        except Exception as error:  # noqa: BLE001 - kornia and torch raise whatever they like
            raise JobError(
                f"data.transform fails with images of {shape[2]} x {shape[1]} pixels: {error}",
                hint="change its arguments, or data.size, so that they fit",
            ) from None

    def apply(self, images: Tensor, *, seed: int) -> Tensor:
        """Return changed images, uint8 [images, channels, height, width] as those that are given.

        What is drawn depends on `seed` and the number of images alone, on any device: kornia draws
        from the CPU's generator, whose state is kept.
        """
        import torch

        with kept_random_state(), torch.no_grad():
            torch.default_generator.manual_seed(seed)
            return torch.cat([self._change(some) for some in torch.split(images, _AT_A_TIME)])

    def _change(self, images: Tensor) -> Tensor:
        import torch

        pixels = images.float().div_(_WHITE)
        is_gray = pixels.shape[1] == 1
        if is_gray:  # kornia has some transforms for colours only
            pixels = pixels.repeat(1, _COLOURS, 1, 1)
        for augment in self._augmentations:
            pixels = augment(pixels).clamp_(0, 1)
        if is_gray:
            pixels = pixels[:, :1]
        return pixels.mul(_WHITE).round_().to(torch.uint8)

    def _make(self, steps: Sequence[Step], shape: Shape) -> Shape:
        """Make the augmentations; returns the shape of what they make of images of a shape."""
        import torch

        blank = torch.zeros((1, *shape), dtype=torch.uint8)
        for step in steps:
            _, _, height, width = blank.shape
            _require_room(step, height, width)
            self._augmentations = [_OF_KORNIA[step.name].make(step.arguments)]
            blank = self.apply(blank, seed=0)
        self._augmentations = [_OF_KORNIA[step.name].make(step.arguments) for step in steps]
        channels, height, width = blank.shape[1:]
        return channels, height, width


def _require_room(step: Step, height: int, width: int) -> None:
    """ValueError for images that are smaller than a crop: kornia would scale them up."""
    if step.name != "RandomCrop" or step.arguments.get("pad_if_needed"):
        return
    padding = step.arguments.get("padding") or 0
    sides = tuple(padding) if isinstance(padding, Sequence) else (padding,)
    left, top, right, bottom = sides * (4 // len(sides))
    needed = _size(step.arguments["size"])
    if needed[0] > height + top + bottom or needed[1] > width + left + right:
        raise ValueError(f"a crop of {needed[1]} x {needed[0]} pixels does not fit into them")


def make_batch_transform(division: Division, shape: Shape) -> BatchTransform | None:
    """Return what is done to batches of images of a shape; None: nothing."""
    return BatchTransform(division.rest, shape) if division.rest else None
