"""How the parts that time was lost to look, in every picture that has them."""

from __future__ import annotations

from typing import Any

from hpcdist.summary.figures import parts

USED: dict[str, Any] = {"color": "#009E73"}
"""What was not lost."""

STYLES: dict[str, dict[str, Any]] = {
    parts.DATA: {"color": "#E69F00", "hatch": "//"},
    parts.DEVICE: {"color": "#F0E442", "hatch": "--"},
    parts.COMMUNICATION: {"color": "#0072B2", "hatch": ".."},
    parts.STRAGGLERS: {"color": "#56B4E9", "hatch": "xx"},
    parts.COMPUTING: {"color": "#CC79A7", "hatch": "\\\\"},
    parts.FIXED: {"color": "#999999"},
    parts.CHECKPOINTS: {"color": "#D55E00", "hatch": "oo"},
    parts.RESTARTS: {"color": "#5D3A9B", "hatch": "++"},
    parts.UNDIVIDED: {"color": "#DDDDDD", "hatch": "**"},
}
"""Colours of Okabe and Ito, told apart by all kinds of sight, with a violet for their black, which
a dark page hides; hatches for print."""

LABELS = {
    parts.DATA: "data wait",
    parts.DEVICE: "to device",
    parts.COMMUNICATION: "exposed communication",
    parts.STRAGGLERS: "stragglers",
    parts.COMPUTING: "slower computing",
    parts.FIXED: "fixed cost",
    parts.CHECKPOINTS: "checkpoints",
    parts.RESTARTS: "restarts",
    parts.UNDIVIDED: "in no phase",
}
