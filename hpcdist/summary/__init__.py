"""From the events of runs to figures, and from these to tables, pages, pictures and files.

    read      the files of a run directory, as typed records (`measuring` takes what has not
              changed from the figures that are kept)
    figures   what one run came to: `RunFigures`
    compare   which runs can be compared, and what they came to beside each other: `RunSummary`
    report    a `Summary` as text, page, Markdown, CSV and pictures

What comes after read and before report is pure. Nothing here imports torch, numpy is imported to
draw only, and only report imports rich.
"""

from hpcdist.job.goal import Goal
from hpcdist.summary.pipeline import print_summary, summarize
from hpcdist.summary.values import RunSummary, Summary, to_json

__all__ = ["Goal", "RunSummary", "Summary", "print_summary", "summarize", "to_json"]
