"""Where a job's images are changed: one by one by the CPUs, or a batch at a time on the device.

Pure, and without torch: known where a job is submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.base.errors import JobError
from hpcdist.data.images.transforms import Spec, Step, is_unchanged, steps_of
from hpcdist.job.spec import Data

_DRAW_NOTHING = frozenset({"CenterCrop", "Grayscale", "Identity", "Pad", "RGB", "Resize"})
"""What an image becomes by these is settled: done before the hand-over, as ever."""

_NEAREST = (None, 0, "nearest")
_BILINEAR = (None, 2, "bilinear")
"""As torchvision takes them; None: not given, where it is the usual one."""


@dataclass(frozen=True, kw_only=True)
class Division:
    """A list of transforms, cut in two."""

    before: Spec
    """What is done to each image before the hand-over."""
    rest: tuple[Step, ...] = ()
    """What is then done to whole batches, from the first that draws by lot."""


def divide(spec: Spec) -> Division:
    """Cut a list at its first transform that draws by lot."""
    steps = steps_of(spec)
    settled = 0
    while settled < len(steps) and steps[settled].name in _DRAW_NOTHING:
        settled += 1
    before = [{step.name: dict(step.arguments)} for step in steps[:settled]]
    return Division(before=before, rest=tuple(steps[settled:]))


def is_on_device(data: Data, device: str) -> bool:
    """Whether whole batches are changed on `device`; what a job asks for has been checked."""
    if data.device_transform is False or not divide(data.transform).rest:
        return False
    return data.device_transform is True or (
        _is_wanted_by_auto(data, device) and _why_not_unasked(data) is None
    )


def transform_on(data: Data, device: str) -> str | None:
    """Who changes training images, for a reader of events: device or cpu; None: nobody does."""
    if is_unchanged(data.transform):
        return None
    return "device" if is_on_device(data, device) else "cpu"


def device_note(data: Data, device: str) -> str | None:
    """What the user should know of where images are changed; None: they are, as ever, by CPUs."""
    if is_on_device(data, device):
        crop = _crop_of_any_size(data)
        scaled = f", and images are scaled to the size of the first before {crop}" if crop else ""
        return (
            f"data.device_transform is {_shown(data.device_transform)}: images are transformed on "
            f"{device}, a batch at a time; rounding can differ from that of the CPUs' way{scaled}"
        )
    reason = _why_not_unasked(data)
    if reason is None or not _is_wanted_by_auto(data, device) or is_unchanged(data.transform):
        return None
    return f"data.device_transform is auto: images are transformed by the CPUs, as {reason}"


def check_device_transform(data: Data) -> None:
    """JobError where the device is asked to do what is not there for whole batches."""
    if data.device_transform is not True or is_unchanged(data.transform):
        return
    reason = why_not(data)
    if reason is not None:
        offered = "; for whole batches there are: " + ", ".join(_RULES)
        raise JobError(
            f"data.device_transform is true, but {reason}",
            hint="set data.device_transform to false, or leave it out"
            + (offered if data.handover == "uint8" else ""),
        )


def why_not(data: Data) -> str | None:
    """What keeps images from being changed a batch at a time; None: nothing."""
    if data.handover != "uint8":
        return f"data.handover is {data.handover}, and pixels are changed as uint8"
    tensors_after = None
    for step in divide(data.transform).rest:
        reason = _why_not_step(step, tensors_after)
        if reason is not None:
            return f"data.transform has {reason}"
        if step.name in _MAKE_TENSORS:
            tensors_after = step.name
    return None


def _why_not_unasked(data: Data) -> str | None:
    """What keeps `auto` from the device: more than rounding would differ, too."""
    crop = _crop_of_any_size(data)
    if crop is None:
        return why_not(data)
    return why_not(data) or f"data.size is unset, and {crop} takes images of any size"


def _crop_of_any_size(data: Data) -> str | None:
    """A crop that the CPUs make of each image as it is; in a batch all are of one size before."""
    division = divide(data.transform)
    if data.size or any(map(_gives_one_size, steps_of(division.before))):
        return None
    return next((step.name for step in division.rest if step.name in _CROPS), None)


def _gives_one_size(step: Step) -> bool:
    size = step.arguments.get("size")
    is_pair = isinstance(size, Sequence) and len(size) == _PAIR
    return step.name == "CenterCrop" or (step.name == "Resize" and is_pair)


def _is_wanted_by_auto(data: Data, device: str) -> bool:
    """Only who has given up the exact pixels has them made by a GPU without asking for it."""
    wanted = data.device_transform == "auto" and data.decoder == "fast"
    return wanted and device.startswith("cuda")


def _why_not_step(step: Step, tensors_after: str | None) -> str | None:
    if step.name not in _RULES:
        where = " after one that draws by lot" if step.name in _DRAW_NOTHING else ""
        return f"{step.name}{where}, which there is not for whole batches"
    if tensors_after is not None and step.name not in _SAME_FOR_TENSORS:
        return f"{step.name} after {tensors_after}, which there is not for whole batches"
    argument = _RULES[step.name](step.arguments)
    if argument is None:
        return None
    return (
        f"{step.name} with {argument}={_shown(step.arguments[argument])}, which there is not for "
        "whole batches"
    )


_CROPS = frozenset({"RandomCrop", "RandomResizedCrop"})
_PAIR = 2

_MAKE_TENSORS = frozenset({"RandomErasing"})
_SAME_FOR_TENSORS = frozenset(
    {"GaussianBlur", "RandomErasing", "RandomHorizontalFlip", "RandomVerticalFlip"}
)
"""torchvision's others make other pixels of tensors than of PIL's images."""


def _any(_: Mapping[str, Any]) -> str | None:
    return None


def _sampled(arguments: Mapping[str, Any]) -> str | None:
    if arguments.get("interpolation") not in _NEAREST + _BILINEAR:
        return "interpolation"
    if isinstance(arguments.get("fill"), Mapping):
        return "fill"
    return "expand" if arguments.get("expand") else None


def _cropped(arguments: Mapping[str, Any]) -> str | None:
    if arguments.get("padding_mode", "constant") != "constant":
        return "padding_mode"
    return "fill" if isinstance(arguments.get("fill"), Mapping) else None


def _resized(arguments: Mapping[str, Any]) -> str | None:
    return None if arguments.get("interpolation") in _BILINEAR else "interpolation"


def _erased(arguments: Mapping[str, Any]) -> str | None:
    value = arguments.get("value")
    levels = value if isinstance(value, Sequence) else [value or 0]
    is_colour = value != "random" and all(0 <= float(level) <= 255 for level in levels)
    return None if is_colour else "value"


_RULES: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
    "ColorJitter": _any,
    "GaussianBlur": _any,
    "RandomAffine": _sampled,
    "RandomCrop": _cropped,
    "RandomErasing": _erased,
    "RandomGrayscale": _any,
    "RandomHorizontalFlip": _any,
    "RandomInvert": _any,
    "RandomPerspective": _sampled,
    "RandomResizedCrop": _resized,
    "RandomRotation": _sampled,
    "RandomVerticalFlip": _any,
}
"""Transform that there is for whole batches -> which of its arguments there is not, if any."""


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
