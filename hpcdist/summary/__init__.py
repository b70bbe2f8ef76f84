"""From the events of runs to figures, and from these to tables, pages, pictures and files.

    read      the files of a run directory, as typed records (`measuring` takes what has not
              changed from the figures that are kept)
    figures   what one run came to: `RunFigures`
    compare   which runs can be compared, and what they came to beside each other: `RunSummary`
    report    a `Summary` as text, page, Markdown, CSV and pictures

What comes after read and before report is pure. Nothing here imports torch, numpy is imported to
draw only, and only report imports rich.

Importing this package loads none of it: a summary of runs that have not changed needs only `read`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcdist.summary.pipeline import print_summary, summarize
    from hpcdist.summary.values import RunSummary, Summary, to_json

__all__ = ["RunSummary", "Summary", "print_summary", "summarize", "to_json"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "pipeline" if name.endswith(("summary", "summarize")) else "values"
    return getattr(importlib.import_module(f"hpcdist.summary.{module}"), name)
