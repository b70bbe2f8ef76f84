"""How lines of a plot look.

The colours are Okabe and Ito's, which all kinds of sight tell apart; markers and dashes say it
again.
"""

from __future__ import annotations

from typing import Any

LINES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    {"color": "#009E73", "marker": "^", "linestyle": "-."},
    {"color": "#CC79A7", "marker": "D", "linestyle": ":"},
    {"color": "#56B4E9", "marker": "v", "linestyle": "-"},
    {"color": "#E69F00", "marker": "P", "linestyle": "--"},
    {"color": "#888888", "marker": "X", "linestyle": "-."},
)
"""One for each of several things; more than these nobody tells apart."""
