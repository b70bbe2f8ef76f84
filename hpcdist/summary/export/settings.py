"""A run's job as flat keys and plain values, as tools that compare runs want them: pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hpcdist.base.secrets import looks_secret
from hpcdist.runs.spec import RunSpec
from hpcdist.summary.report.page.again import HIDDEN, starred_args

Setting = str | float | bool
"""bool and int are among them."""

_LEFT_OUT = frozenset({"name", "description"})


def settings_of(spec: RunSpec) -> dict[str, Setting]:
    """The job of a spec.json, by dotted key; what is not set is left out, secrets are starred out,
    and lists are JSON."""
    flat = dict(_flat(spec.job))
    if (torch := spec.versions.get("torch")) is not None:
        flat["torch"] = torch
    if spec.scheduler is not None:
        flat["scheduler"] = spec.scheduler
    return {key: value for key, value in flat.items() if key not in _LEFT_OUT}


def created_s(spec: RunSpec) -> float:
    """Unix time at which the run was submitted; 0 where that is not known."""
    created = spec.created_s
    return created if created is not None and 0 < created < 1e12 else 0.0


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    for name, value in section.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        elif isinstance(value, list):
            texts = starred_args(value) if _is_of_texts(value) else value
            yield key, json.dumps(texts, ensure_ascii=False, default=str)
        elif isinstance(value, str):
            yield key, HIDDEN if looks_secret(key, value) else value
        elif isinstance(value, (bool, int, float)):
            yield key, value


def _is_of_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
