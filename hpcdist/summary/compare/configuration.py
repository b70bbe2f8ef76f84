"""What makes two runs measurements of one thing, whenever and wherever they ran: pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcdist.summary.compare.scaling import compared_conditions

_FREE = (
    "torch",  # a check against a baseline asks what a new version brings
    "scheduler",
    "backend",
    "script",  # another checkout of it
    "module",
    "program",
    "data.root",
)
"""Conditions that may differ beyond those that may between runs of different sizes."""

_DEVICE = "device"
_DIGEST_BYTES = 6


class Digests(NamedTuple):
    """What runs are told apart by, resources left aside."""

    configuration: str
    """Of all that must be equal."""
    settings: str
    """Of the same without the device, which is not known of a run that never began."""


def configurations(runs: Sequence[Mapping[str, Any]]) -> list[Digests]:
    """Those of each run's conditions.

    Equal conditions are mostly one object, which is looked at once.
    """
    known = {id(conditions): conditions for conditions in runs}
    digests = {key: _digests(conditions) for key, conditions in known.items()}
    return [digests[id(conditions)] for conditions in runs]


def _digests(conditions: Mapping[str, Any]) -> Digests:
    settings = _digest({key: value for key, value in conditions.items() if key != _DEVICE})
    return Digests(_digest(conditions) if conditions.get(_DEVICE) else settings, settings)


def _digest(conditions: Mapping[str, Any]) -> str:
    fixed = compared_conditions(conditions) | {"strategy": conditions.get("strategy")}
    known = {key: value for key, value in fixed.items() if key not in _FREE and value is not None}
    text = json.dumps(known, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
