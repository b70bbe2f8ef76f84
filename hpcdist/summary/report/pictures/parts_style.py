"""How the parts that time was lost to look, in every picture that has them."""

from __future__ import annotations

from typing import Any

from hpcdist.summary.figures.shares import (
    CHECKPOINTS,
    COMMUNICATION,
    COMPUTING,
    DATA,
    DEVICE,
    FIXED,
    RESTARTS,
    STRAGGLERS,
    UNDIVIDED,
)

USED: dict[str, Any] = {"color": "#009E73"}
"""What was not lost."""

STYLES: dict[str, dict[str, Any]] = {
    DATA: {"color": "#E69F00", "hatch": "//"},
    DEVICE: {"color": "#F0E442", "hatch": "--"},
    COMMUNICATION: {"color": "#0072B2", "hatch": ".."},
    STRAGGLERS: {"color": "#56B4E9", "hatch": "xx"},
    COMPUTING: {"color": "#CC79A7", "hatch": "\\\\"},
    FIXED: {"color": "#999999"},
    CHECKPOINTS: {"color": "#D55E00", "hatch": "oo"},
    RESTARTS: {"color": "#5D3A9B", "hatch": "++"},
    UNDIVIDED: {"color": "#DDDDDD", "hatch": "**"},
}
"""Colours of Okabe and Ito, told apart by all kinds of sight, with a violet for their black, which
a dark page hides; hatches for print."""

LABELS = {
    DATA: "data wait",
    DEVICE: "to device",
    COMMUNICATION: "exposed communication",
    STRAGGLERS: "stragglers",
    COMPUTING: "slower computing",
    FIXED: "fixed cost",
    CHECKPOINTS: "checkpoints",
    RESTARTS: "restarts",
    UNDIVIDED: "in no phase",
}
