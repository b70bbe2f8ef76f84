"""What makes two runs measurements of one thing, whenever and wherever they ran: pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdist.summary.scaling import compared_conditions

_FREE = (
    "torch",  # a check against a baseline asks what a new version brings
    "scheduler",
    "backend",
    "script",  # another checkout of it
    "module",
    "data.root",
)
"""Conditions that may differ beyond those that may between runs of different sizes."""

_DIGEST_BYTES = 6


def configurations(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Digest, for each run's conditions, of all that must be equal, resources apart.

    Equal conditions are mostly one object, which is looked at once.
    """
    known = {id(conditions): conditions for conditions in runs}
    digests = {key: _digest(conditions) for key, conditions in known.items()}
    return [digests[id(conditions)] for conditions in runs]


def _digest(conditions: Mapping[str, Any]) -> str:
    fixed = compared_conditions(conditions) | {"strategy": conditions.get("strategy")}
    known = {key: value for key, value in fixed.items() if key not in _FREE and value is not None}
    text = json.dumps(known, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
