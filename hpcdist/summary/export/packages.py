"""The packages that tools need, which are extras of ours: asked for before anything is read."""

from __future__ import annotations

import importlib.util

from hpcdist.base.errors import UserError


def need_package(extra: str) -> None:
    """Raise UserError where the package of an extra, which has its name, is not installed."""
    if importlib.util.find_spec(extra) is None:
        raise UserError(
            f"--{extra} needs the package {extra}, which is not installed here",
            hint=f"install it: pip install 'hpcdist[{extra}]'",
        )
