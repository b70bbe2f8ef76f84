"""Transforms of whole batches where the model is, by kornia.

A list of torchvision's transforms is cut in two: what draws nothing and comes first is done to each
image by the CPUs, the rest to batches on the device, with parameters of its own for each image. The
choice between the two ways needs neither torch nor kornia: it is known where a job is submitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcdist.base.errors import JobError
from hpcdist.data.images.transforms import Spec, Step, is_unchanged, kept_random_state, steps_of
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


class Division(NamedTuple):
    """A list of transforms, cut in two."""

    before: Spec
    """Done to each image before the hand-over."""
    rest: tuple[Step, ...]
    """Done to whole batches: from the first transform on that draws random numbers."""


def divide(spec: Spec) -> Division:
    """Cut a list at its first transform that draws random numbers."""
    steps = steps_of(spec)
    before = list(itertools.takewhile(lambda step: step.name in _DRAW_NOTHING, steps))
    items = [{step.name: dict(step.arguments)} for step in before]
    return Division(items, tuple(steps[len(before) :]))


def is_on_device(data: Data, device: str) -> bool:
    """Return whether whole batches are transformed on `device`; `data` has been checked."""
    return _decide(data, device)[0]


def transform_on(data: Data, device: str) -> str | None:
    """Return where training images are transformed: device or cpu; None: they are not."""
    if is_unchanged(data.transform):
        return None
    return "device" if is_on_device(data, device) else "cpu"


def device_note(data: Data, device: str) -> str | None:
    """Return a note for the user on where images are transformed; None: by the CPUs, as usual."""
    is_on, reason = _decide(data, device)
    if is_on:
        crop = _crop_of_any_size(data)
        scaled = f"; images are scaled to the size of the first before {crop}" if crop else ""
        setting = str(data.device_transform).lower()
        return (
            f"data.device_transform is {setting}: images are transformed on {device}, a batch at a "
            f"time, by kornia; their pixels differ from those that the CPUs make{scaled}"
        )
    return reason and (
        f"data.device_transform is auto: images are transformed by the CPUs, because {reason}"
    )


def _decide(data: Data, device: str) -> tuple[bool, str | None]:
    """Return whether whole batches are transformed, and why not where auto would like to."""
    is_possible = bool(divide(data.transform).rest)
    # Only a job that does without exact pixels has them made by a GPU without asking for it.
    is_wanted = data.decoder == "fast" and device.startswith("cuda")
    if data.device_transform != "auto" or not is_wanted or is_unchanged(data.transform):
        return data.device_transform is True and is_possible, None
    reason, crop = why_not(data), _crop_of_any_size(data)
    if reason is None and crop is not None:
        reason = f"data.size is not set, and {crop} takes images of any size"
    return is_possible and reason is None, reason


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
        hint += "; whole batches support: " + ", ".join(_OF_KORNIA)
    raise JobError(f"data.device_transform is true, but {reason}", hint=hint)


def why_not(data: Data) -> str | None:
    """Return the reason why images cannot be transformed a batch at a time; None: they can."""
    if data.handover != "uint8":
        return f"data.handover is {data.handover}, and whole batches are transformed from uint8"
    for step in divide(data.transform).rest:
        reason = _why_not_step(step)
        if reason is not None:
            return f"data.transform has {reason}, which is not supported for whole batches"
    return None if find_spec("kornia") else _WITHOUT_KORNIA


def _why_not_step(step: Step) -> str | None:
    if step.name not in _OF_KORNIA:
        after = " after one that draws random numbers" if step.name in _DRAW_NOTHING else ""
        return step.name + after
    for name, value in step.arguments.items():
        try:
            _OF_KORNIA[step.name][name](value)
        except (KeyError, TypeError, ValueError):
            return f"{step.name} with {name}={str(value).lower()}"
    return None


def _crop_of_any_size(data: Data) -> str | None:
    """A crop that the CPUs would make of each image as it is; in a batch all have one size."""
    before, rest = divide(data.transform)
    for step in steps_of(before):
        size = step.arguments.get("size")
        is_pair = isinstance(size, Sequence) and len(size) == _PAIR
        if step.name == "CenterCrop" or (step.name == "Resize" and is_pair):
            return None  # this one gives all images one size
    if data.size:
        return None
    return next((step.name for step in rest if step.name in _CROPS), None)


# From torchvision's arguments to kornia's.


def _same(value: Any) -> Any:
    return tuple(value) if isinstance(value, Sequence) else value


def _size(value: Any) -> tuple[int, int]:
    """(height, width); a number means a square."""
    height, width = value if isinstance(value, Sequence) else (value, value)
    return int(height), int(width)


def _range(value: Any) -> tuple[float, float]:
    low, high = value if isinstance(value, Sequence) else (value, value)
    return float(low), float(high)


_BILINEAR = {2: "BILINEAR", "bilinear": "BILINEAR"}
_RESAMPLING = {0: "NEAREST", "nearest": "NEAREST", **_BILINEAR}


def _level(value: Any) -> float:
    """Return a level of 0 to 255, the same for all channels."""
    if not 0 <= float(value) <= _WHITE:
        raise ValueError(value)
    return float(value) / _WHITE


_Arguments = Mapping[str, Callable[[Any], Any]]

_CHANCE: _Arguments = {"p": float}
_INTERPOLATION: _Arguments = {"interpolation": _RESAMPLING.__getitem__}
_OF_KORNIA: Mapping[str, _Arguments] = {
    "ColorJitter": dict.fromkeys(("brightness", "contrast", "saturation", "hue"), _same),
    # torchvision's kernels are (width, height).
    "GaussianBlur": {"kernel_size": lambda value: _size(value)[::-1], "sigma": _range},
    "RandomAffine": {
        **dict.fromkeys(("degrees", "translate", "scale", "shear"), _same),
        **_INTERPOLATION,
    },
    "RandomCrop": {
        "size": _size,
        "padding": _same,
        "pad_if_needed": bool,
        "fill": _level,
        "padding_mode": {"constant": "constant"}.__getitem__,
    },
    "RandomErasing": {**_CHANCE, "scale": _range, "ratio": _range, "value": _level},
    "RandomGrayscale": _CHANCE,
    "RandomHorizontalFlip": _CHANCE,
    "RandomInvert": _CHANCE,
    "RandomPerspective": {**_CHANCE, "distortion_scale": float, **_INTERPOLATION},
    "RandomResizedCrop": {
        "size": _size,
        "scale": _range,
        "ratio": _range,
        "interpolation": _BILINEAR.__getitem__,
    },
    "RandomRotation": {"degrees": _same, **_INTERPOLATION},
    "RandomVerticalFlip": _CHANCE,
}
"""torchvision's transforms that kornia has for whole batches: argument -> its value for kornia, or
TypeError, KeyError, ValueError."""
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "GaussianBlur": {"sigma": (0.1, 2.0), "p": 1.0},
    "RandomAffine": {"resample": "NEAREST", "p": 1.0},
    "RandomRotation": {"resample": "NEAREST", "p": 1.0},
}
"""In kornia's names, where torchvision's defaults differ."""
_RENAMED = {"GaussianBlur": "RandomGaussianBlur", "interpolation": "resample"}
"""Names in torchvision -> in kornia."""


def _make_augmentation(step: Step) -> Any:
    """Return kornia's augmentation that does the same as a transform of torchvision."""
    from kornia import augmentation

    translated = {
        _RENAMED.get(name, name): _OF_KORNIA[step.name][name](value)
        for name, value in step.arguments.items()
    }
    kind = getattr(augmentation, _RENAMED.get(step.name, step.name))
    return kind(**{**_DEFAULTS.get(step.name, {}), **translated})


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
            self._augmentations = [_make_augmentation(step)]
            blank = self.apply(blank, seed=0)
        self._augmentations = [_make_augmentation(step) for step in steps]
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
