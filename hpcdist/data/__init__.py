"""Data sets, and loading them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcdist.data.images.samples import FastImages

__all__ = ["FastImages"]


def __getattr__(name: str) -> Any:
    if name != "FastImages":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hpcdist.data.images.samples import FastImages  # brings torch

    return FastImages
